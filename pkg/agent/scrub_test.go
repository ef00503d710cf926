package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

func TestScrub(t *testing.T) {
	r := newRack(t)
	_, err := r.macrack.ImageV1alpha1().MacOSImages().Create(r.ctx, &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "private"},
		Spec: imagev1alpha1.MacOSImageSpec{
			Source: imagev1alpha1.ImageSource{Digest: "sha256:private"}, DiskSize: scalar.MustParse("8Mi"),
			PullSecretRef: &imagev1alpha1.SecretReference{Namespace: tenant, Name: "pull"},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.run("a")
	b := newInstance("b")
	b.Spec.ImageName = "private"
	r.create(b, newPod(b))
	r.waitPhase("b", instancev1alpha1.MacOSInstanceRunning)

	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	r.waitPhase("b", instancev1alpha1.MacOSInstanceStopped)
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
	report := r.macNode().Status.Scrub
	require.NotNil(t, report)
	assert.EqualValues(t, "uid-lease-1", report.LeaseUID)
	assert.Empty(t, report.Remaining)
	removed := strings.Join(report.Removed, "\n")
	for _, path := range []string{"slots/0/disk/disk.img", "slots/1/disk/disk.img", "slots/0/console.log", "images/private"} {
		assert.Contains(t, removed, path)
	}
	assert.NotContains(t, removed, "macos-26", "the golden image is no tenant's")
	left, err := r.agent.slots.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, 0, r.running())

	// The next lease starts with an empty list.
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Scrub = nil })
	r.lease("globex", "lease-2")
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool { s := r.macNode().Status.Scrub; return s != nil && s.LeaseUID == "uid-lease-2" }, func() any { return r.macNode().Status })
	assert.Empty(t, r.macNode().Status.Scrub.Removed)
}

// The caches of a lease outlive its instances and the agent, and end with the scrub.
func TestCaches(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Caches = []rackv1alpha1.LeaseCache{{Name: "gems", SizeLimit: scalar.MustParse("64Mi")}}
	})
	run := func(name string, readOnly bool) []contract.Share {
		i := newInstance(name)
		i.Spec.Caches = []instancev1alpha1.InstanceCache{{Name: "gems", ReadOnly: readOnly}}
		r.create(i, newPod(i))
		r.waitPhase(name, instancev1alpha1.MacOSInstanceRunning)
		slot, ok := r.agent.slots.Find(string(i.UID))
		require.True(t, ok)
		return slot.Spec.Shares
	}
	shares := run("a", false)
	dir := filepath.Join(r.dir, "caches", "uid-lease-1", "gems", "data")
	assert.Equal(t, []contract.Share{{Name: "gems", Path: dir}}, shares)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kept"), []byte("x"), 0o600))
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), By: tenant, Reason: "Asked"}
	})
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	r.restart()
	assert.Equal(t, []contract.Share{{Name: "gems", Path: dir, ReadOnly: true}}, run("b", true))
	assert.FileExists(t, filepath.Join(dir, "kept"))

	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
	report := r.macNode().Status.Scrub
	assert.Contains(t, strings.Join(report.Removed, "\n"), "caches/uid-lease-1/gems (")
	assert.Empty(t, report.Remaining)
	assert.NoDirExists(t, filepath.Join(r.dir, "caches", "uid-lease-1"))
}

// A cache that the lease does not have delays an instance with a message.
func TestNoSuchCache(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Spec.Caches = []instancev1alpha1.InstanceCache{{Name: "gems"}}
	r.create(i, newPod(i))
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, `has no cache "gems"`) }, func() any { return r.instance("a").Status })
	assert.Equal(t, 0, r.running())
}

func TestScrubWaitsForVirtualMachines(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	r.post(r.slotOf(i), sim.PathHang)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonCannotReattach)
	// An instance that was declared dead keeps its slot while its virtual machine runs.
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = instancev1alpha1.MacOSInstanceFailed })
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool {
		m, err := r.agent.objects.macNode.Cached()
		if err != nil || m.Status.ReleasingSince == nil {
			return false
		}
		i, err := r.agent.objects.instances.Cached(tenant, "a")
		return err == nil && i.Status.Phase == instancev1alpha1.MacOSInstanceFailed
	}, func() any { return nil })
	require.NoError(t, r.agent.macNode.Reconcile(r.ctx))
	assert.Nil(t, r.macNode().Status.Scrub, "what cannot be reached may still be there")
	r.post(r.slotOf(i), sim.PathWake)
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
}

// The scrub waits only for the end of an instance, and no slot reports that end.
func TestScrubWaitsForInstances(t *testing.T) {
	r := newRack(t)
	r.create(newInstance("a"), nil)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool {
		m := r.macNode().Status
		return m.Hardware != nil
	}, func() any { return r.macNode().Status })
	seen := func() bool {
		m, err := r.agent.objects.macNode.Cached()
		_, instanceErr := r.agent.objects.instances.Cached(tenant, "a")
		return err == nil && instanceErr == nil && m.ResourceVersion == r.macNode().ResourceVersion
	}
	r.eventually(seen, func() any { return r.macNode().Status })
	require.NoError(t, r.agent.macNode.Reconcile(r.ctx))
	assert.Nil(t, r.macNode().Status.Scrub)
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = instancev1alpha1.MacOSInstanceFailed })
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
}

// A partial pull of a tenant's image is scrubbed like a complete one.
func TestScrubRemovesUnfinishedPrivateImages(t *testing.T) {
	r, s := slowRack(t, nil)
	dir := filepath.Join(r.dir, "images", "secret")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	s.mu.Lock()
	s.unfinished = []images.Cached{{Name: "secret", Private: true}, {Name: "public"}}
	s.mu.Unlock()
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool { return r.macNode().Status.Scrub != nil }, func() any { return r.macNode().Status })
	assert.Contains(t, r.macNode().Status.Scrub.Removed, "images/secret")
	assert.NotContains(t, strings.Join(r.macNode().Status.Scrub.Removed, " "), "public")
	assert.NoDirExists(t, dir)
}
