package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	rackapply "macrack.io/macrack/pkg/generated/applyconfiguration/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

const unleased = "macrack.io/unleased:NoSchedule"

func TestBinding(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.clock.SetTime(noon.Add(400 * time.Millisecond))
	lease := f.lease("acme", "build", "mac-1")

	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, lease.Status.Phase)
	assert.True(t, lease.Status.BoundAt.Time.Equal(noon.Add(time.Second)), "a time is rounded up: %s", lease.Status.BoundAt)
	assert.True(t, lease.Status.EarliestReleaseAt.Time.Equal(noon.Add(24*time.Hour+time.Second)))
	assert.Equal(t, []string{rules.FinalizerFloor}, lease.Finalizers)
	assert.Equal(t, "C07AAAAA0001", lease.Status.SerialNumber)
	assert.True(t, meta.IsStatusConditionTrue(lease.Status.Conditions, "Bound"))

	node := f.node("mac-1")
	assert.Equal(t, rackv1alpha1.MacNodeLeased, node.Status.Phase)
	assert.Equal(t, &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build", UID: lease.UID, BoundAt: lease.Status.BoundAt, NamespaceUID: lease.Status.NamespaceUID}, node.Status.LeaseRef)
	assert.True(t, node.Status.EarliestReleaseAt.Equal(lease.Status.EarliestReleaseAt))

	records := f.records("acme")
	require.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseBound}, typesOf(records))
	assert.Equal(t, "system:serviceaccount:macrack-system:macrack-controllers", records[0].Actor.Username)
	assert.NotEmpty(t, records[0].RequestID)
	assert.EqualValues(t, 1, records[0].Sequence)

	t.Run("the Mac gets the list of images to prefetch", func(t *testing.T) {
		f.mac("mac-3", "C07AAAAA0003")
		lease := newLease("acme", "prefetch")
		lease.Spec.PrefetchImages = []string{"macos-26"}
		_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), lease, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, f.bind("acme", "prefetch", "mac-3"))
		assert.Equal(t, []string{"macos-26"}, f.node("mac-3").Status.PrefetchImages)
		f.report("mac-3", func(s *rackv1alpha1.MacNodeStatus) { s.PrefetchImages = nil })
		assert.Equal(t, []string{"macos-26"}, f.node("mac-3").Status.PrefetchImages, "the agent must not write this field")
		lease = f.getLease(lease.Namespace, lease.Name)
		lease.Spec.PrefetchImages = []string{"macos-27"}
		_, err = f.acme.RackV1alpha1().MacNodeLeases(lease.Namespace).Update(t.Context(), lease, metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.Equal(t, []string{"macos-27"}, f.node("mac-3").Status.PrefetchImages, "a change reaches the Mac of a bound lease")
	})
	t.Run("a Mac has one lease only", func(t *testing.T) {
		_, err := f.globex.RackV1alpha1().MacNodeLeases("globex").Create(t.Context(), newLease("globex", "late"), metav1.CreateOptions{})
		require.NoError(t, err)
		err = f.bind("globex", "late", "mac-1")
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.ErrorContains(t, err, "rule 2 (one tenant per Mac)")
	})
	t.Run("a binding is for the lease of its UID", func(t *testing.T) {
		_, err := f.controllers.RackV1alpha1().MacNodeLeases("globex").Bind(t.Context(), "late",
			&rackv1alpha1.MacNodeLeaseBinding{ObjectMeta: metav1.ObjectMeta{UID: "of-another"}, NodeName: "mac-1"}, metav1.CreateOptions{})
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.ErrorContains(t, err, "another object has its name now")
	})
	t.Run("a lease has one Mac only", func(t *testing.T) {
		f.mac("mac-2", "C07AAAAA0002")
		assert.True(t, apierrors.IsConflict(f.bind("acme", "build", "mac-2")))
		assert.Nil(t, f.node("mac-2").Status.LeaseRef)
	})
	t.Run("a dry run binds nothing, and is refused like the real request", func(t *testing.T) {
		leases := f.controllers.RackV1alpha1().MacNodeLeases("globex")
		before := f.etcd.Revision(t)
		_, err := leases.Bind(t.Context(), "late", &rackv1alpha1.MacNodeLeaseBinding{NodeName: "mac-1"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		_, err = leases.Bind(t.Context(), "late", &rackv1alpha1.MacNodeLeaseBinding{NodeName: "mac-2"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		assert.NoError(t, err)
		assert.Zero(t, f.etcd.Transactions(t, before))
	})
	t.Run("another tenant's serial number cannot be requested", func(t *testing.T) {
		lease := newLease("globex", "that-one")
		lease.Spec.SerialNumber = "C07AAAAA0001"
		_, err := f.globex.RackV1alpha1().MacNodeLeases("globex").Create(t.Context(), lease, metav1.CreateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.NotContains(t, err.Error(), "acme", "the message must not name the Mac's tenant")
		assert.Len(t, f.records("globex"), 0)
		records := f.records("macrack-system") // neither tenant reads records about both
		last := records[len(records)-1]
		assert.Equal(t, rackv1alpha1.CrossTenantRejected, last.Type)
		assert.Equal(t, "acme", last.Tenant)
		assert.Equal(t, "globex", last.Details.SourceNamespace)
		assert.Equal(t, "globex", last.Actor.Username)
	})
	t.Run("only an available Mac of the class", func(t *testing.T) {
		node := f.node("mac-2")
		node.Spec.Maintenance = true
		node, err := f.admin.RackV1alpha1().MacNodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		assert.Equal(t, rackv1alpha1.MacNodeMaintenance, node.Status.Phase)
		assert.ErrorContains(t, f.bind("globex", "late", "mac-2"), "is Maintenance")
	})
}

func TestDeleteUnbound(t *testing.T) {
	f := newFleet(t, 1)
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	f.deleteLease("acme", "build")
	_, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "build", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "a lease without a Mac is deleted at once")
}

// An update that names no class keeps the lease's class.
func TestClassIsKept(t *testing.T) {
	f := newFleet(t, 1)
	lease, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	lease.Spec.ClassName = ""
	lease, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Update(t.Context(), lease, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Equal(t, "base", lease.Spec.ClassName)
}

// A lease without a class gets the default class, however it is created.
func TestDefaultClass(t *testing.T) {
	f := newFleet(t, 1)
	leases := f.acme.RackV1alpha1().MacNodeLeases("acme")
	unnamed := func(name string) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name}}
	}
	_, err := leases.Create(t.Context(), unnamed("none"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsInvalid(err), "there is no default: %v", err)

	_, err = f.admin.ConfigV1alpha1().RackConfigs().Create(t.Context(), &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: configv1alpha1.RackConfigSpec{DefaultClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var created *rackv1alpha1.MacNodeLease
	require.Eventually(t, func() bool {
		created, err = leases.Create(t.Context(), unnamed("created"), metav1.CreateOptions{})
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond, "%v", err)
	assert.Equal(t, "base", created.Spec.ClassName)
	applied, err := leases.Apply(t.Context(), rackapply.MacNodeLease("applied", "acme"), metav1.ApplyOptions{FieldManager: "test"})
	require.NoError(t, err)
	assert.Equal(t, "base", applied.Spec.ClassName)
}
