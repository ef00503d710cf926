package registry

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// warnings collects the warnings of a server.
type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

func (f *fleet) warned(name string, groups ...string) (versioned.Interface, *warnings) {
	f.t.Helper()
	config, w := f.servers[0].Config(name, groups...), &warnings{}
	config.WarningHandler = w
	client, err := versioned.NewForConfig(config)
	require.NoError(f.t, err)
	return client, w
}

func TestWarningsOfAHeldLease(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAA01")
	f.lease("acme", "build", "mac-1")
	acme, warned := f.warned("acme", "system:authenticated")
	leases := acme.RackV1alpha1().MacNodeLeases("acme")
	lengthen := func(d string, dryRun ...string) {
		t.Helper()
		_, err := leases.Patch(t.Context(), "build", types.MergePatchType, []byte(`{"spec": {"minimumDuration": "`+d+`"}}`), metav1.PatchOptions{DryRun: dryRun})
		require.NoError(t, err)
	}
	remove := func(dryRun ...string) {
		t.Helper()
		require.NoError(t, leases.Delete(t.Context(), "build", metav1.DeleteOptions{DryRun: dryRun}))
	}
	const held = `rule 3 (at least 24 hours): lease "build" is Held; you keep the Mac until 2026-03-03T12:00:00Z (in 2d), then MacRack releases it; for kubectl to return at once, use --wait=false`

	lengthen("48h")
	assert.Empty(t, warned.take(), "a regular change of a Bound lease")
	remove(metav1.DryRunAll)
	assert.Equal(t, []string{held}, warned.take(), "a dry run warns like the deletion")
	assert.Equal(t, "Bound", string(f.getLease("acme", "build").Status.Phase))
	remove()
	assert.Equal(t, []string{held}, warned.take())
	remove(metav1.DryRunAll)
	assert.Equal(t, []string{held}, warned.take(), "it is still Held")

	const longer = `rule 3 (at least 24 hours): lease "build" is Held; the Mac remains leased and billed until 2026-03-04T12:00:00Z instead of 2026-03-03T12:00:00Z; this cannot be undone`
	lengthen("72h", metav1.DryRunAll)
	assert.Equal(t, []string{longer}, warned.take())
	lengthen("72h")
	assert.Equal(t, []string{longer}, warned.take())
	lengthen("72h")
	assert.Empty(t, warned.take(), "it is already that long")
}

func TestNoWarningPastTheFloor(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAA01")
	f.lease("acme", "build", "mac-1")
	f.setTime(noon.Add(25 * time.Hour))
	acme, warned := f.warned("acme", "system:authenticated")
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		require.NoError(t, acme.RackV1alpha1().MacNodeLeases("acme").Delete(t.Context(), "build", metav1.DeleteOptions{DryRun: dryRun}))
		assert.Empty(t, warned.take())
	}
}

func TestWarningsOfClassesInUse(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAA01")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "build")))
	admin, warned := f.warned("admin", "system:masters")

	const starting = `InstanceClass "small" is the class of 1 instances that have not started yet; they fail unless the class exists again by then`
	sizes := admin.InstanceV1alpha1().InstanceClasses()
	require.NoError(t, sizes.Delete(t.Context(), "large", metav1.DeleteOptions{}))
	assert.Empty(t, warned.take(), "the class is unused")
	require.NoError(t, sizes.Delete(t.Context(), "small", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	assert.Equal(t, []string{starting}, warned.take())
	f.start("mac-1", "acme", "vm", 1)
	require.Equal(t, instancev1alpha1.MacOSInstanceRunning, f.getInstance("acme", "vm").Status.Phase)
	require.NoError(t, sizes.Delete(t.Context(), "small", metav1.DeleteOptions{}))
	assert.Empty(t, warned.take(), "a running instance no longer needs it")

	require.NoError(t, admin.RackV1alpha1().MacNodeClasses().Delete(t.Context(), "base", metav1.DeleteOptions{}))
	assert.Equal(t, []string{`MacNodeClass "base" is the class of 1 Macs, such as "mac-1"; no instance is accepted on them until the class exists again`}, warned.take())
}
