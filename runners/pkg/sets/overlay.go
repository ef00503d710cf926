package sets

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// overlay has the objects that this process has written, until the cache has them. A job that was
// given to a machine must not be given to another one because the cache lags.
type overlay[T metav1.Object] map[string]written[T]

type written[T metav1.Object] struct {
	object T
	at     time.Time
}

// lag is the time for which an object that the cache does not have counts as created.
const lag = 10 * time.Second

func (o overlay[T]) put(object T, now time.Time) { o[object.GetName()] = written[T]{object, now} }

// merge returns the newest version of each object, and forgets those that the cache has.
func (o overlay[T]) merge(cached []T, now time.Time) []T {
	var merged []T
	seen := map[string]bool{}
	for _, object := range cached {
		name := object.GetName()
		seen[name] = true
		if w, found := o[name]; found && w.object.GetUID() == object.GetUID() && version(w.object) > version(object) {
			object = w.object
		} else {
			delete(o, name)
		}
		merged = append(merged, object)
	}
	for name, w := range o {
		switch {
		case seen[name]:
		case now.Sub(w.at) < lag && w.object.GetDeletionTimestamp() == nil:
			merged = append(merged, w.object)
		default:
			delete(o, name)
		}
	}
	return merged
}

// version returns the resource version of an object as a number. MacRack's are revisions of etcd.
func version(object metav1.Object) uint64 {
	v, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}
