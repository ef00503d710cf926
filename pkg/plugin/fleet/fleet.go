// Package fleet reads Macs, leases and instances with the rights of the user, once or continuously.
// Objects that the user may not list are absent, with a notice.
package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
)

// A Snapshot has the objects of one moment, sorted by namespace and name. The objects are shared
// and must not be changed.
type Snapshot struct {
	Now       time.Time
	Macs      []*rackv1alpha1.MacNode
	Leases    []*rackv1alpha1.MacNodeLease
	Instances []*instancev1alpha1.MacOSInstance
	// MacsShown: the user may list Macs.
	MacsShown bool
	// Notices state which objects are not shown.
	Notices []string
	// Problem is set while the server does not answer and the objects may be stale.
	Problem error
}

// A Reader reads objects.
type Reader struct {
	clock clock.WithTicker
	feeds []*feed
}

// NewReader returns a reader without resources.
func NewReader(clock clock.WithTicker) *Reader { return &Reader{clock: clock} }

// Resources of MacRack.
var (
	Macs      = cmdutil.Resource{Name: "Macs", Resource: "macnodes", Group: rackv1alpha1.GroupName}
	Leases    = cmdutil.Resource{Name: "Leases", Resource: "macnodeleases", Group: rackv1alpha1.GroupName, Namespaced: true}
	Instances = cmdutil.Resource{Name: "Instances", Resource: "macosinstances", Group: instancev1alpha1.GroupName, Namespaced: true}
	Records   = cmdutil.Resource{Name: "Records", Resource: "auditrecords", Group: rackv1alpha1.GroupName, Namespaced: true}

	UsageReports      = cmdutil.Resource{Name: "Usage reports", Resource: "usagereports", Group: rackv1alpha1.GroupName, Namespaced: true}
	ComplianceReports = cmdutil.Resource{Name: "Compliance reports", Resource: "compliancereports", Group: rackv1alpha1.GroupName}
)

// WithMacs adds all Macs.
func (r *Reader) WithMacs(c *cmdutil.Clients) *Reader {
	client := c.MacRack.RackV1alpha1().MacNodes()
	return r.add(&feed{resource: Macs, namespaces: []string{""},
		list: func(ctx context.Context, _ string, opts metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, opts)
		},
		watch: func(ctx context.Context, _ string, opts metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, opts)
		},
	})
}

// WithLeases adds the leases of the first of the namespaces that the user may list; "" means all.
func (r *Reader) WithLeases(c *cmdutil.Clients, namespaces ...string) *Reader {
	client := c.MacRack.RackV1alpha1()
	return r.add(&feed{resource: Leases, namespaces: namespaces,
		list: func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error) {
			return client.MacNodeLeases(namespace).List(ctx, opts)
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
			return client.MacNodeLeases(namespace).Watch(ctx, opts)
		},
	})
}

// WithInstances adds the instances of the first of the namespaces that the user may list; "" means
// all.
func (r *Reader) WithInstances(c *cmdutil.Clients, namespaces ...string) *Reader {
	client := c.MacRack.InstanceV1alpha1()
	return r.add(&feed{resource: Instances, namespaces: namespaces,
		list: func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error) {
			return client.MacOSInstances(namespace).List(ctx, opts)
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
			return client.MacOSInstances(namespace).Watch(ctx, opts)
		},
	})
}

func (r *Reader) add(f *feed) *Reader {
	f.clock = r.clock
	r.feeds = append(r.feeds, f)
	return r
}

// Read lists all objects once.
func (r *Reader) Read(ctx context.Context) (*Snapshot, error) {
	for _, f := range r.feeds {
		if err := f.sync(ctx); err != nil {
			return nil, err
		}
	}
	return r.snapshot(), nil
}

const (
	// settle is the time in which several changes are drawn at once.
	settle = 100 * time.Millisecond
	// refresh is the time after which times are drawn again without a change.
	refresh = time.Second
)

// Follow reads all objects and calls draw now, after changes, and every second. It returns nil
// when ctx is done, and an error if the first read fails or the server stops answering.
func (r *Reader) Follow(ctx context.Context, draw func(*Snapshot) error) error {
	s, err := r.Read(ctx)
	if err != nil {
		return err
	}
	if err := draw(s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, failed := make(chan struct{}, 1), make(chan error, len(r.feeds))
	for _, f := range r.feeds {
		go func() {
			err := f.follow(ctx, func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			})
			if err != nil {
				failed <- err
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-changed:
			select {
			case <-ctx.Done():
				return nil
			case <-r.clock.After(settle):
			}
		case <-r.clock.After(refresh):
		}
		if err := draw(r.snapshot()); err != nil {
			return err
		}
	}
}

func (r *Reader) snapshot() *Snapshot {
	s := &Snapshot{Now: r.clock.Now().UTC().Truncate(time.Second)}
	for _, f := range r.feeds {
		objects, notice, problem := f.read()
		for _, obj := range objects {
			switch obj := obj.(type) {
			case *rackv1alpha1.MacNode:
				s.Macs = append(s.Macs, obj)
			case *rackv1alpha1.MacNodeLease:
				s.Leases = append(s.Leases, obj)
			case *instancev1alpha1.MacOSInstance:
				s.Instances = append(s.Instances, obj)
			}
		}
		if f.resource == Macs {
			s.MacsShown = !f.denied()
		}
		if notice != "" {
			s.Notices = append(s.Notices, notice)
		}
		s.Problem = cmp.Or(s.Problem, problem)
	}
	sortByName(s.Macs)
	sortByName(s.Leases)
	sortByName(s.Instances)
	return s
}

func sortByName[T metav1.Object](objects []T) {
	slices.SortFunc(objects, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
