package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

func mac(name string) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// start follows the Macs of a fixture. Each step of the clock is one second.
func start(t *testing.T, f *plugintest.Fixture) (last *atomic.Pointer[Snapshot], result <-chan error, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	last, done := &atomic.Pointer[Snapshot]{}, make(chan error, 1)
	reader := NewReader(f.Clock).WithMacs(f.Clients)
	go func() {
		done <- reader.Follow(ctx, func(s *Snapshot) error {
			last.Store(s)
			return nil
		})
	}()
	require.Eventually(t, func() bool { return last.Load() != nil }, 10*time.Second, time.Millisecond)
	return last, done, cancel
}

// eventually steps the clock until the last snapshot satisfies check.
func eventually(t *testing.T, f *plugintest.Fixture, last *atomic.Pointer[Snapshot], check func(*Snapshot) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.Clock.Step(time.Second)
		return check(last.Load())
	}, 10*time.Second, time.Millisecond)
}

func TestFollow(t *testing.T) {
	f := plugintest.New(mac("mac-1"))
	last, result, cancel := start(t, f)
	assert.True(t, last.Load().MacsShown)
	require.Eventually(t, func() bool { return watches(f) == 1 }, 10*time.Second, time.Millisecond)
	_, err := f.MacRack.RackV1alpha1().MacNodes().Create(t.Context(), mac("mac-0"), metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, f, last, func(s *Snapshot) bool { return len(s.Macs) == 2 && s.Macs[0].Name == "mac-0" })
	require.NoError(t, f.MacRack.RackV1alpha1().MacNodes().Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	eventually(t, f, last, func(s *Snapshot) bool { return len(s.Macs) == 1 })
	assert.Equal(t, 1, lists(f), "a watch needs one list")
	cancel()
	assert.NoError(t, <-result, "Ctrl-C is no failure")
}

func lists(f *plugintest.Fixture) int   { return count(f, "list") }
func watches(f *plugintest.Fixture) int { return count(f, "watch") }

func count(f *plugintest.Fixture, verb string) int {
	n := 0
	for _, action := range f.MacRack.Actions() {
		if action.GetVerb() == verb {
			n++
		}
	}
	return n
}

// A watch that expires starts with a new list.
func TestExpiredWatch(t *testing.T) {
	f := plugintest.New(mac("mac-1"))
	var expired atomic.Bool
	f.MacRack.PrependWatchReactor("macnodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		if expired.Swap(true) {
			return false, nil, nil
		}
		w := watch.NewFakeWithChanSize(1, false)
		w.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
		return true, w, nil
	})
	last, _, _ := start(t, f)
	eventually(t, f, last, func(s *Snapshot) bool { return lists(f) == 2 && watches(f) == 2 && s.Problem == nil })
}

// refuseAfterStart makes the fixture refuse connections while gone is set; the first list succeeds.
func refuseAfterStart(t *testing.T, f *plugintest.Fixture, gone *atomic.Bool) (last *atomic.Pointer[Snapshot], result <-chan error) {
	t.Helper()
	refused := errors.New("connection refused")
	f.MacRack.PrependWatchReactor("macnodes", func(clienttesting.Action) (bool, watch.Interface, error) { return gone.Load(), nil, refused })
	last, result, _ = start(t, f)
	f.MacRack.PrependReactor("list", "macnodes", func(clienttesting.Action) (bool, runtime.Object, error) { return gone.Load(), nil, refused })
	return last, result
}

// While the server does not answer, the snapshots have the last objects and the problem.
func TestServerComesBack(t *testing.T) {
	f := plugintest.New(mac("mac-1"))
	var gone atomic.Bool
	gone.Store(true)
	last, _ := refuseAfterStart(t, f, &gone)
	eventually(t, f, last, func(s *Snapshot) bool { return s.Problem != nil && len(s.Macs) == 1 })
	gone.Store(false)
	eventually(t, f, last, func(s *Snapshot) bool { return s.Problem == nil && len(s.Macs) == 1 })
}

// A server that stays away is an error after some time.
func TestServerGone(t *testing.T) {
	f := plugintest.New(mac("mac-1"))
	var gone atomic.Bool
	gone.Store(true)
	began := f.Clock.Now()
	_, result := refuseAfterStart(t, f, &gone)
	require.Eventually(t, func() bool {
		f.Clock.Step(time.Second)
		return len(result) == 1
	}, 10*time.Second, time.Millisecond)
	assert.ErrorContains(t, <-result, "the server has not answered for")
	assert.GreaterOrEqual(t, f.Clock.Since(began), patience)
	assert.Greater(t, lists(f), 1, "it has tried again")
}

// A watch without events is no silence: the server has some time to come back after it ends.
func TestServerGoneAfterAQuietHour(t *testing.T) {
	f := plugintest.New(mac("mac-1"))
	quiet := watch.NewFake()
	var gone atomic.Bool
	f.MacRack.PrependWatchReactor("macnodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		if gone.Load() {
			return true, nil, errors.New("connection refused")
		}
		return true, quiet, nil
	})
	last, result, _ := start(t, f)
	require.Eventually(t, func() bool { return watches(f) == 1 }, 10*time.Second, time.Millisecond)
	f.Clock.Step(time.Hour)
	ended := f.Clock.Now()
	gone.Store(true)
	f.MacRack.PrependReactor("list", "macnodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	quiet.Stop()
	eventually(t, f, last, func(s *Snapshot) bool { return s.Problem != nil })
	require.Eventually(t, func() bool {
		f.Clock.Step(time.Second)
		return len(result) == 1
	}, 10*time.Second, time.Millisecond)
	assert.ErrorContains(t, <-result, "the server has not answered for")
	assert.GreaterOrEqual(t, f.Clock.Since(ended), patience)
}

// Rights that end while a picture is shown remove the objects.
func TestRightsEnd(t *testing.T) {
	f := plugintest.New(mac("mac-1"))
	f.MacRack.PrependWatchReactor("macnodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "macnodes"}, "", nil)
	})
	last, _, _ := start(t, f)
	f.ForbidMacRack("list", "macnodes", "*")
	eventually(t, f, last, func(s *Snapshot) bool { return len(s.Macs) == 0 && len(s.Notices) == 1 })
}

func TestFirstReadFails(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"not installed": {apierrors.NewNotFound(schema.GroupResource{}, ""), "the cluster does not serve macnodes.rack.macrack.io; select a cluster with MacRack with --context"},
		"down":          {apierrors.NewServiceUnavailable("down"), "macnodes.rack.macrack.io is not available; retry later: down"},
		"unreachable":   {errors.New("connection refused"), "failed to read macnodes: connection refused"},
	} {
		f := plugintest.New()
		f.MacRack.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.err })
		draw := func(*Snapshot) error { return errors.New("nothing to draw") }
		assert.EqualError(t, NewReader(f.Clock).WithMacs(f.Clients).Follow(t.Context(), draw), tt.want, name)
	}
}

func TestNamespaces(t *testing.T) {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build"}}
	other := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "globex", Name: "ci"}}
	f := plugintest.New(lease, other)
	s, err := NewReader(f.Clock).WithLeases(f.Clients, "", "acme").Read(t.Context())
	require.NoError(t, err)
	assert.Len(t, s.Leases, 2)
	assert.Empty(t, s.Notices)

	f.ForbidMacRack("list", "macnodeleases", "")
	s, err = NewReader(f.Clock).WithLeases(f.Clients, "", "acme").Read(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []*rackv1alpha1.MacNodeLease{lease}, s.Leases)
	assert.Equal(t, []string{"Leases of other namespaces are not shown: you may not list macnodeleases in rack.macrack.io in all namespaces"}, s.Notices)
}
