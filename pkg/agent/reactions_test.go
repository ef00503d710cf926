package agent

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// reactions are the reactors of a fake client in use, to which reactors cannot be added without a
// race.
type reactions struct {
	mu   sync.Mutex
	list []clienttesting.SimpleReactor
}

func (r *reactions) prepend(verb, resource string, f clienttesting.ReactionFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append([]clienttesting.SimpleReactor{{Verb: verb, Resource: resource, Reaction: f}}, r.list...)
}

func (r *reactions) react(action clienttesting.Action) (bool, runtime.Object, error) {
	r.mu.Lock()
	list := r.list
	r.mu.Unlock()
	for _, reactor := range list {
		if !reactor.Handles(action) {
			continue
		}
		if handled, obj, err := reactor.React(action); handled {
			return true, obj, err
		}
	}
	return false, nil, nil
}
