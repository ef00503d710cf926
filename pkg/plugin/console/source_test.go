package console

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
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

// follow feeds a model from a fixture for the duration of the test.
func follow(t *testing.T, f *plugintest.Fixture, namespaces ...string) *model {
	t.Helper()
	m := newModel(f.Clock)
	ctx, cancel := context.WithCancel(t.Context())
	for _, s := range newSources(f.Clients, namespaces, m, f.Clock) {
		done := make(chan struct{})
		go func() {
			s.run(ctx)
			close(done)
		}()
		t.Cleanup(func() { <-done })
	}
	t.Cleanup(cancel)
	return m
}

func (m *model) state(kind Kind) (Source, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sources[kind], len(m.items[kind])
}

// eventually steps the clock until the objects of a kind satisfy check.
func eventually(t *testing.T, f *plugintest.Fixture, m *model, kind Kind, check func(Source, int) bool) {
	t.Helper()
	assert.Eventually(t, func() bool {
		f.Clock.Step(time.Second)
		return check(m.state(kind))
	}, 10*time.Second, time.Millisecond)
}

func newLeaseIn(namespace, name string) *rackv1alpha1.MacNodeLease {
	return &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func TestSources(t *testing.T) {
	f := plugintest.New(mac("mac-1", rackv1alpha1.MacNodeAvailable), newLeaseIn("acme", "build"), newLeaseIn("globex", "ci"))
	m := follow(t, f, "", "acme")
	eventually(t, f, m, Macs, func(s Source, n int) bool { return s.Loaded && n == 1 })
	eventually(t, f, m, Leases, func(s Source, n int) bool { return s.Loaded && n == 2 && s.Notice == "" })
	eventually(t, f, m, Images, func(s Source, n int) bool { return s.Loaded && n == 0 })

	client := f.MacRack.RackV1alpha1().MacNodes()
	assert.Eventually(t, func() bool { return watches(f, "macnodes") > 0 }, 10*time.Second, time.Millisecond)
	_, err := client.Create(t.Context(), mac("mac-2", rackv1alpha1.MacNodeAvailable), metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, f, m, Macs, func(_ Source, n int) bool { return n == 2 })
	require.NoError(t, client.Delete(t.Context(), "mac-1", metav1.DeleteOptions{}))
	eventually(t, f, m, Macs, func(_ Source, n int) bool { return n == 1 })
	assert.NotNil(t, m.get(Macs, "mac-2"))
}

func watches(f *plugintest.Fixture, resource string) (n int) {
	for _, action := range f.MacRack.Actions() {
		if action.Matches("watch", resource) {
			n++
		}
	}
	return n
}

// A tenant sees the objects of its namespace, and which rights are missing.
func TestSourcesOfTenant(t *testing.T) {
	f := plugintest.New(mac("mac-1", rackv1alpha1.MacNodeAvailable), newLeaseIn("acme", "build"), newLeaseIn("globex", "ci"))
	f.ForbidMacRack("list", "macnodes", "*")
	f.ForbidMacRack("watch", "macnodes", "*")
	f.ForbidMacRack("list", "macnodeleases", "")
	f.ForbidMacRack("watch", "macnodeleases", "")
	m := follow(t, f, "", "acme")
	eventually(t, f, m, Macs, func(s Source, n int) bool {
		return s.Denied && n == 0 && s.Notice == "Macs are not shown: you may not list macnodes in rack.macrack.io"
	})
	eventually(t, f, m, Leases, func(s Source, n int) bool { return s.Loaded && !s.Denied && n == 1 })
	source, _ := m.state(Leases)
	assert.Equal(t, "Leases of other namespaces are not shown: you may not list macnodeleases in rack.macrack.io in all namespaces", source.Notice)
	assert.NotNil(t, m.get(Leases, "acme/build"))
	eventually(t, f, m, Images, func(s Source, _ int) bool { return s.Loaded && !s.Denied })
}

// While the cluster does not answer, the last objects stay, with the problem and its time.
func TestClusterComesBack(t *testing.T) {
	f := plugintest.New(mac("mac-1", rackv1alpha1.MacNodeAvailable))
	var gone atomic.Bool
	var quiet atomic.Pointer[watch.FakeWatcher]
	refused := errors.New("connection refused")
	f.MacRack.PrependWatchReactor("macnodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		if gone.Load() {
			return true, nil, refused
		}
		quiet.Store(watch.NewFake())
		return true, quiet.Load(), nil
	})
	f.MacRack.PrependReactor("list", "macnodes", func(clienttesting.Action) (bool, runtime.Object, error) { return gone.Load(), nil, refused })
	m := follow(t, f, "")
	eventually(t, f, m, Macs, func(s Source, n int) bool { return s.Loaded && n == 1 && watches(f, "macnodes") > 0 })
	gone.Store(true)
	quiet.Load().Stop()
	eventually(t, f, m, Macs, func(s Source, n int) bool {
		return s.Problem == "failed to read macnodes: connection refused" && s.Since != "" && n == 1
	})
	gone.Store(false)
	eventually(t, f, m, Macs, func(s Source, n int) bool { return s.Problem == "" && s.Since == "" && n == 1 })
}

// Rights that end remove the objects; rights that come back show them again.
func TestRightsChange(t *testing.T) {
	f := plugintest.New(mac("mac-1", rackv1alpha1.MacNodeAvailable))
	var forbidden atomic.Bool
	var w atomic.Pointer[watch.FakeWatcher]
	forbid := func(action clienttesting.Action) error {
		if !forbidden.Load() {
			return nil
		}
		return forbiddenError(action)
	}
	f.MacRack.PrependReactor("list", "macnodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		err := forbid(action)
		return err != nil, nil, err
	})
	f.MacRack.PrependWatchReactor("macnodes", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if err := forbid(action); err != nil {
			return true, nil, err
		}
		w.Store(watch.NewFake())
		return true, w.Load(), nil
	})
	m := follow(t, f, "")
	eventually(t, f, m, Macs, func(s Source, n int) bool { return n == 1 && watches(f, "macnodes") > 0 })
	forbidden.Store(true)
	w.Load().Stop()
	eventually(t, f, m, Macs, func(s Source, n int) bool { return s.Denied && n == 0 && s.Problem == "" })
	forbidden.Store(false)
	eventually(t, f, m, Macs, func(s Source, n int) bool { return !s.Denied && s.Notice == "" && n == 1 })
}

func forbiddenError(action clienttesting.Action) error {
	r := action.GetResource()
	return apierrors.NewForbidden(r.GroupResource(), "", nil)
}
