package race

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// A mac is the clients' knowledge of a Mac, its lease and its instances. It may be stale, as
// clients' caches are.
type mac struct {
	name    string
	serials []string // serial numbers that this and other Macs are created with

	mu        sync.Mutex
	node      *rackv1alpha1.MacNode
	lease     *rackv1alpha1.MacNodeLease
	instances map[string]*instancev1alpha1.MacOSInstance // of the lease
}

// A view is the known state of a mac at a moment.
type view struct {
	*mac
	node      *rackv1alpha1.MacNode
	lease     *rackv1alpha1.MacNodeLease
	live      []*instancev1alpha1.MacOSInstance
	ended     []*instancev1alpha1.MacOSInstance
	instances []*instancev1alpha1.MacOSInstance
}

func (m *mac) view() view {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := view{mac: m, node: m.node, lease: m.lease, instances: slices.Collect(maps.Values(m.instances))}
	for _, i := range v.instances {
		if over(i) {
			v.ended = append(v.ended, i)
		} else {
			v.live = append(v.live, i)
		}
	}
	return v
}

func over(i *instancev1alpha1.MacOSInstance) bool {
	return i.Status.Phase == instancev1alpha1.MacOSInstanceStopped || i.Status.Phase == instancev1alpha1.MacOSInstanceFailed
}

// phase returns the phase of the lease, or "" without a lease.
func (v view) phase() rackv1alpha1.MacNodeLeasePhase {
	if v.lease == nil {
		return ""
	}
	return v.lease.Status.Phase
}

// newer reports whether an object is newer than the known one.
func newer(obj, known metav1.Object) bool {
	is, _ := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	was, _ := strconv.ParseInt(known.GetResourceVersion(), 10, 64)
	return is > was
}

func (m *mac) sawNode(node *rackv1alpha1.MacNode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil || newer(node, m.node) {
		m.node = node
	}
	if ref := m.node.Status.LeaseRef; ref == nil && m.lease != nil && newer(m.node, m.lease) {
		m.lease = nil
	}
}

func (m *mac) lostNode(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != nil && (uid == "" || string(m.node.UID) == uid) {
		m.node = nil
	}
}

// sawLease returns the instances of the Mac's previous lease.
func (m *mac) sawLease(lease *rackv1alpha1.MacNodeLease) (left []*instancev1alpha1.MacOSInstance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lease != nil && m.lease.UID == lease.UID {
		if newer(lease, m.lease) {
			m.lease = lease
		}
		return nil
	}
	if m.lease == nil || newer(lease, m.lease) {
		left = slices.Collect(maps.Values(m.instances))
		m.lease, m.instances = lease, map[string]*instancev1alpha1.MacOSInstance{}
	}
	return left
}

func (m *mac) lostLease(name string) (left []*instancev1alpha1.MacOSInstance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lease == nil || m.lease.Name != name {
		return nil
	}
	left = slices.Collect(maps.Values(m.instances))
	m.lease, m.instances = nil, map[string]*instancev1alpha1.MacOSInstance{}
	return left
}

func (m *mac) sawInstance(i *instancev1alpha1.MacOSInstance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lease == nil || m.lease.Name != i.Spec.LeaseName || m.lease.Namespace != i.Namespace {
		return
	}
	if known := m.instances[i.Name]; known == nil || newer(i, known) {
		m.instances[i.Name] = i
	}
	if gone(i) {
		delete(m.instances, i.Name)
	}
}

func (m *mac) lostInstance(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.instances, name)
}

// A pool is a set of objects that clients pick from.
type pool[T any] struct {
	mu    sync.Mutex
	items []T
}

func (p *pool[T]) add(items ...T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = append(p.items, items...)
}

func (p *pool[T]) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.items)
}

// at returns the nth item, which stays in the pool.
func (p *pool[T]) at(n int) (item T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) == 0 {
		return item, false
	}
	return p.items[n%len(p.items)], true
}

// take returns the nth item and removes it.
func (p *pool[T]) take(n int) (item T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) == 0 {
		return item, false
	}
	n %= len(p.items)
	item = p.items[n]
	p.items = slices.Delete(p.items, n, n+1)
	return item, true
}

func (p *pool[T]) drop(is func(T) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = slices.DeleteFunc(p.items, is)
}

func serial(n int) string { return fmt.Sprintf("C07AAAAA%04d", n) }
