package macosinstance

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
)

// fakeLeases are the changes of one lease.
type fakeLeases struct {
	rest.Getter
	watched chan *watch.FakeWatcher
}

func (f fakeLeases) Watch(_ context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if options.ResourceVersion != "7" || options.FieldSelector.String() != "metadata.name=build" {
		return nil, apierrors.NewBadRequest("another watch")
	}
	w := watch.NewFake()
	f.watched <- w
	return w, nil
}

// fakeMacs has the Macs that are free.
type fakeMacs struct {
	rest.Lister
	free int
	// others have the phase of free Macs.
	others []rack.MacNode
}

func (f *fakeMacs) List(_ context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	mac := fields.Set{"spec.className": "base", "spec.serialNumber": "S1", "status.phase": "Available"}
	if s := options.FieldSelector; !s.Matches(mac) || len(s.Requirements()) != len(mac) {
		return nil, apierrors.NewBadRequest("another selector: " + s.String())
	}
	return &rack.MacNodeList{Items: append(make([]rack.MacNode, f.free), f.others...)}, nil
}

func pendingLease(namespace string) *rack.MacNodeLease {
	return &rack.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "build", ResourceVersion: "7"},
		Spec:       rack.MacNodeLeaseSpec{ClassName: "base", SerialNumber: "S1"},
		Status:     rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending},
	}
}

// shared is an object as the watch cache hands it to many watchers.
type shared struct{ *rack.MacNodeLease }

func (s shared) CacheEncode(runtime.Identifier, func(runtime.Object, io.Writer) error, io.Writer) error {
	return nil
}

func (s shared) GetObject() runtime.Object { return s.MacNodeLease }

type waiting struct {
	*REST
	clock  *clocktesting.FakeClock
	leases fakeLeases
	macs   *fakeMacs
}

func newWaiting() waiting {
	w := waiting{clock: clocktesting.NewFakeClock(time.Unix(0, 0)), leases: fakeLeases{watched: make(chan *watch.FakeWatcher)}, macs: &fakeMacs{free: 1}}
	w.REST = &REST{clock: w.clock, leases: w.leases, nodes: w.macs, waiting: map[string]int{}}
	return w
}

// begin begins a request, and returns its lease's changes and what becomes of it.
func (w waiting) begin(ctx context.Context, namespace string) (*watch.FakeWatcher, <-chan error) {
	done := make(chan error, 1)
	go func() { done <- w.wait(ctx, pendingLease(namespace)) }()
	return <-w.leases.watched, done
}

func TestWait(t *testing.T) {
	again := func(t *testing.T, err error) {
		t.Helper()
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		seconds, suggested := apierrors.SuggestsClientDelay(err)
		assert.True(t, suggested)
		assert.Equal(t, 1, seconds)
	}
	bound := pendingLease("acme")
	bound.Status.Phase = rack.MacNodeLeaseBound
	for name, tt := range map[string]struct {
		happens func(t *testing.T, w waiting, changes *watch.FakeWatcher, cancel func())
		want    func(t *testing.T, err error)
	}{
		"the lease is bound": {
			func(_ *testing.T, _ waiting, changes *watch.FakeWatcher, _ func()) {
				changes.Modify(pendingLease("acme")) // its condition has the cause of the wait
				changes.Modify(bound)
			},
			func(t *testing.T, err error) { assert.NoError(t, err) },
		},
		"the lease is bound, as seen by many watchers": {
			func(_ *testing.T, _ waiting, changes *watch.FakeWatcher, _ func()) { changes.Modify(shared{bound}) },
			func(t *testing.T, err error) { assert.NoError(t, err) },
		},
		"the lease is deleted": {
			func(_ *testing.T, _ waiting, changes *watch.FakeWatcher, _ func()) {
				changes.Delete(pendingLease("acme"))
			},
			func(t *testing.T, err error) { assert.NoError(t, err, "it is refused for that") },
		},
		"nothing": {
			func(_ *testing.T, w waiting, _ *watch.FakeWatcher, _ func()) { w.clock.Step(2 * time.Second) }, again,
		},
		"another lease gets the Mac": {
			func(_ *testing.T, w waiting, _ *watch.FakeWatcher, _ func()) {
				w.macs.free = 0
				w.clock.Step(2 * time.Second)
			},
			func(t *testing.T, err error) { assert.NoError(t, err, "it is refused for that") },
		},
		"the watch ends": {
			func(_ *testing.T, w waiting, changes *watch.FakeWatcher, _ func()) {
				changes.Stop()
				w.clock.Step(2 * time.Second)
			},
			again,
		},
		"the client has gone": {
			func(_ *testing.T, _ waiting, _ *watch.FakeWatcher, cancel func()) { cancel() }, again,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaiting()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			changes, done := w.begin(ctx, "acme")
			select {
			case err := <-done:
				t.Fatalf("it did not wait: %v", err)
			default:
			}
			tt.happens(t, w, changes, cancel)
			tt.want(t, <-done)
			assert.Zero(t, w.all)
			assert.Empty(t, w.waiting)
		})
	}
}

// A request that waits takes a seat of priority and fairness: there are places for some, and for
// each namespace for fewer.
func TestWaitIsBounded(t *testing.T) {
	w := newWaiting()
	ctx, cancel := context.WithCancel(t.Context())
	var all []<-chan error
	for _, namespace := range []string{"a", "b", "c", "d"} {
		for range maxWaitingOfANamespace {
			_, done := w.begin(ctx, namespace)
			all = append(all, done)
		}
		assert.True(t, apierrors.IsTooManyRequests(w.wait(ctx, pendingLease(namespace))), "at once")
	}
	assert.Len(t, all, maxWaiting)
	assert.True(t, apierrors.IsTooManyRequests(w.wait(ctx, pendingLease("e"))), "at once")
	cancel()
	for _, done := range all {
		assert.True(t, apierrors.IsTooManyRequests(<-done))
	}
	_, done := w.begin(t.Context(), "e")
	w.clock.Step(2 * time.Second)
	assert.True(t, apierrors.IsTooManyRequests(<-done), "there are places again")
}

// A Mac that no lease gets is no reason to try again.
func TestMacThatIsNotFree(t *testing.T) {
	w := newWaiting()
	now := metav1.Now()
	for name, mac := range map[string]rack.MacNode{
		"being deleted": {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}},
		"leased":        {Status: rack.MacNodeStatus{LeaseRef: &rack.LeaseReference{Name: "other"}}},
	} {
		w.macs.free, w.macs.others = 0, []rack.MacNode{mac}
		free, err := w.isMacFree(t.Context(), pendingLease("acme"))
		require.NoError(t, err)
		assert.False(t, free, name)
		w.macs.free = 1
		free, err = w.isMacFree(t.Context(), pendingLease("acme"))
		require.NoError(t, err)
		assert.True(t, free, "another Mac is free")
	}
}
