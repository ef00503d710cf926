package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// An agent that never comes back frees nothing by its silence. An administrator may write the Mac
// off, with a record. The Mac is in quarantine until a new boot ID proves a reboot.
func TestMacIsLost(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	lease := f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	f.start("mac-1", "acme", "one", 1)

	node := f.node("mac-1")
	meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeReady, Status: metav1.ConditionFalse, Reason: "HeartbeatMissing"})
	_, err := f.controllers.RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	f.clock.Step(48 * time.Hour)
	f.deleteLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseReleasing, f.getLease("acme", "build").Status.Phase)
	_, err = f.controllers.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "one", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)

	stopped := func(s *instancev1alpha1.MacOSInstanceStatus) { s.Phase = instancev1alpha1.MacOSInstanceStopped }
	release := func() error { return f.release("acme", "build", rules.TaintUnleased+":NoSchedule") }
	assert.True(t, apierrors.IsForbidden(f.write(f.controllers, "acme", "one", stopped)), "only the agent may report the stop")
	assert.ErrorContains(t, release(), "waiting for instances to stop: one")
	assert.Len(t, f.getLease("acme", "build").Status.Instances, 1)
	assert.EqualValues(t, 1, f.node("mac-1").Status.RunningVMs)

	require.NoError(t, f.write(f.admin, "acme", "one", stopped))
	assert.Empty(t, f.getLease("acme", "build").Status.Instances)
	assert.ErrorContains(t, release(), "to report a complete scrub")
	node = f.node("mac-1")
	node.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: lease.UID, FinishedAt: metav1.NewTime(f.clock.Now())}
	node.Status.Quarantine = nil
	meta.SetStatusCondition(&node.Status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue, Reason: "Burnt"})
	_, err = f.admin.RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, release())

	node = f.node("mac-1")
	assert.Nil(t, node.Status.LeaseRef)
	assert.Equal(t, rackv1alpha1.MacNodeQuarantined, node.Status.Phase, "it may come back with its virtual machines")
	records := f.records("acme")
	assert.Equal(t, []rackv1alpha1.AuditRecordType{
		rackv1alpha1.LeaseBound, rackv1alpha1.InstanceStarted, rackv1alpha1.InstanceStopped, rackv1alpha1.NodeQuarantined, rackv1alpha1.LeaseReleased,
	}, typesOf(records))
	assert.Equal(t, "admin", records[2].Actor.Username)
	assert.Equal(t, "admin", records[3].Actor.Username)
	assert.Equal(t, rackv1alpha1.ReasonScrubAsserted, records[3].Details.Reason)

	healthy := func(bootID string) *rackv1alpha1.MacNode {
		return f.report("mac-1", func(s *rackv1alpha1.MacNodeStatus) {
			s.BootID = bootID
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionTrue, Reason: "Healthy"})
		})
	}
	assert.NotNil(t, healthy("boot-1").Status.Quarantine, "it is back without a reboot")
	assert.Nil(t, healthy("boot-2").Status.Quarantine)
}
