package console

import (
	"bytes"
	"encoding/json"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/plugin/cmdutil"
)

// A Kind is a kind of objects in the page.
type Kind string

// Kinds of objects in the page.
const (
	Macs      Kind = "macs"
	Leases    Kind = "leases"
	Instances Kind = "instances"
	Images    Kind = "images"
	Classes   Kind = "classes"
)

// A Source is the state of the objects of a kind.
type Source struct {
	// Loaded: the objects were read, or may not be read.
	Loaded bool `json:"loaded"`
	// Denied: the user may not list the objects.
	Denied bool `json:"denied,omitempty"`
	// Notice states which objects are not shown.
	Notice string `json:"notice,omitempty"`
	// Problem is the last failure, until the server answers again; Since is when it began.
	Problem string `json:"problem,omitempty"`
	Since   string `json:"since,omitempty"`
}

// A Message is what the page receives: all items first, then the changed ones. A null item was
// deleted.
type Message struct {
	Items   map[Kind]map[string]json.RawMessage `json:"items,omitempty"`
	Sources map[Kind]Source                     `json:"sources,omitempty"`
	Time    string                              `json:"time"`
}

type item struct {
	object runtime.Object
	view   json.RawMessage
}

// A model has the objects as the page needs them, and the subscribers that receive the changes.
type model struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	items   map[Kind]map[string]item
	sources map[Kind]Source
	readers map[*reader]struct{}
}

func newModel(clock clock.PassiveClock) *model {
	m := &model{clock: clock, items: map[Kind]map[string]item{}, sources: map[Kind]Source{}, readers: map[*reader]struct{}{}}
	for _, kind := range []Kind{Macs, Leases, Instances, Images, Classes} {
		m.items[kind], m.sources[kind] = map[string]item{}, Source{}
	}
	return m
}

func keyOf(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return cache.MetaObjectToName(m).String()
}

func (m *model) put(kind Kind, obj runtime.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(kind, keyOf(obj), obj)
}

// putLocked tells the readers only of changes that the page can show.
func (m *model) putLocked(kind Kind, key string, obj runtime.Object) {
	view := viewOf(obj)
	old, exists := m.items[kind][key]
	m.items[kind][key] = item{obj, view}
	if !exists || !bytes.Equal(old.view, view) {
		m.changedLocked(kind, key)
	}
}

func (m *model) remove(kind Kind, obj runtime.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeLocked(kind, keyOf(obj))
}

func (m *model) removeLocked(kind Kind, key string) {
	delete(m.items[kind], key)
	m.changedLocked(kind, key)
}

func (m *model) replace(kind Kind, objects []any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	present := make(map[string]bool, len(objects))
	for _, obj := range objects {
		key := keyOf(obj.(runtime.Object))
		present[key] = true
		m.putLocked(kind, key, obj.(runtime.Object))
	}
	for key := range m.items[kind] {
		if !present[key] {
			m.removeLocked(kind, key)
		}
	}
	source := m.sources[kind]
	source.Loaded, source.Denied = true, false
	m.setSourceLocked(kind, source)
}

// deny removes the objects of a kind, which the user may not list.
func (m *model) deny(kind Kind, notice string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.items[kind] {
		m.removeLocked(kind, key)
	}
	m.setSourceLocked(kind, Source{Loaded: true, Denied: true, Notice: notice})
}

func (m *model) answered(kind Kind, notice string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	source := m.sources[kind]
	source.Notice, source.Problem, source.Since = notice, "", ""
	m.setSourceLocked(kind, source)
}

func (m *model) failed(kind Kind, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	source := m.sources[kind]
	source.Problem = err.Error()
	if source.Since == "" {
		source.Since = cmdutil.Time(m.clock.Now())
	}
	m.setSourceLocked(kind, source)
}

func (m *model) setSourceLocked(kind Kind, source Source) {
	if m.sources[kind] == source {
		return
	}
	m.sources[kind] = source
	for r := range m.readers {
		r.sources = true
		r.wake()
	}
}

func (m *model) changedLocked(kind Kind, key string) {
	for r := range m.readers {
		if r.changed[kind] == nil {
			r.changed[kind] = map[string]struct{}{}
		}
		r.changed[kind][key] = struct{}{}
		r.wake()
	}
}

// get returns an object, or nil.
func (m *model) get(kind Kind, key string) runtime.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.items[kind][key].object
}

// find returns an object of a kind for which matches returns true, or nil.
func (m *model) find(kind Kind, matches func(runtime.Object) bool) runtime.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, item := range m.items[kind] {
		if matches(item.object) {
			return item.object
		}
	}
	return nil
}

// A reader is a page that follows the model. It remembers which items have changed since it took
// the last message, and not the changes, so that a slow page takes little memory.
type reader struct {
	model *model
	// ready has an element if there is something to take.
	ready   chan struct{}
	changed map[Kind]map[string]struct{}
	sources bool
}

func (r *reader) wake() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// follow returns a reader, and a message with all items.
func (m *model) follow() (*reader, Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &reader{model: m, ready: make(chan struct{}, 1), changed: map[Kind]map[string]struct{}{}}
	m.readers[r] = struct{}{}
	all := Message{Items: make(map[Kind]map[string]json.RawMessage, len(m.items)), Sources: maps.Clone(m.sources), Time: cmdutil.Time(m.clock.Now())}
	for kind, items := range m.items {
		views := make(map[string]json.RawMessage, len(items))
		for key, item := range items {
			views[key] = item.view
		}
		all.Items[kind] = views
	}
	return r, all
}

// take returns a message with what has changed since the last one.
func (r *reader) take() Message {
	r.model.mu.Lock()
	defer r.model.mu.Unlock()
	message := Message{Items: make(map[Kind]map[string]json.RawMessage, len(r.changed)), Time: cmdutil.Time(r.model.clock.Now())}
	for kind, keys := range r.changed {
		views := make(map[string]json.RawMessage, len(keys))
		for key := range keys {
			views[key] = r.model.items[kind][key].view // null if it was deleted
		}
		message.Items[kind] = views
	}
	if r.sources {
		message.Sources = maps.Clone(r.model.sources)
	}
	r.changed, r.sources = map[Kind]map[string]struct{}{}, false
	return message
}

func (r *reader) close() {
	r.model.mu.Lock()
	defer r.model.mu.Unlock()
	delete(r.model.readers, r)
}
