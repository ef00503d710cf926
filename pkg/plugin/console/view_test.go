package console

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

func TestMacView(t *testing.T) {
	node := mac("mac-1", rackv1alpha1.MacNodeLeased)
	node.Spec.Location = rackv1alpha1.MacNodeLocation{Site: "lab", Rack: "r1", Shelf: "3"}
	node.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build"}
	node.Status.EarliestReleaseAt, node.Status.RunningVMs = plugintest.At(5), 2
	node.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeReady, Status: metav1.ConditionTrue, LastTransitionTime: *plugintest.At(-1)}}
	got := newMac(node)
	assert.Equal(t, Mac{Name: "mac-1", Serial: "C0mac-1", Site: "lab", Rack: "r1", Shelf: "3", Phase: "Leased", Tenant: "acme", Lease: "build", VMs: 2,
		Floor: "2026-11-30T17:00:00Z", Heartbeat: "True", HeartbeatSince: "2026-11-30T11:00:00Z"}, got)

	node.Status.LeaseRef.HeldAt = plugintest.At(-1)
	assert.Equal(t, "Held", newMac(node).Phase)
	node.Status.Phase = rackv1alpha1.MacNodeOffline
	assert.Equal(t, "Offline", newMac(node).Phase, "an offline Mac is offline first")
	assert.Equal(t, "Pending", newMac(mac("new", "")).Phase)
}

func TestLeaseView(t *testing.T) {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build"}}
	lease.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: "NoMacAvailable", Message: "0 of 3 Macs are free"}}
	got := newLease(lease)
	assert.Equal(t, []string{"Pending", "NoMacAvailable", "0 of 3 Macs are free", "", ""}, []string{got.Phase, got.Reason, got.Message, got.Floor, got.Expires})

	lease.Spec.MinimumDuration, lease.Spec.ExpireAfter = scalar.NewDuration(24*time.Hour), scalar.NewDuration(48*time.Hour)
	lease.Status = rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeaseBound, BoundAt: plugintest.At(-1), NodeName: "mac-1", Instances: []rackv1alpha1.LeaseSlot{{Name: "one"}}}
	got = newLease(lease)
	assert.Equal(t, "2026-12-01T11:00:00Z", got.Floor, "a floor that is not stored follows from the binding")
	assert.Equal(t, "2026-12-02T11:00:00Z", got.Expires)
	assert.Equal(t, []string{"one"}, got.Slots)
	assert.Equal(t, "Leased", got.MacPhase)

	notReady := func(reason string) *rackv1alpha1.MacNodeLease {
		l := lease.DeepCopy()
		l.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeLeaseConditionMacReady, Status: metav1.ConditionFalse, Reason: reason}}
		return l
	}
	assert.Equal(t, "Offline", newLease(notReady(rackv1alpha1.ReasonMacOffline)).MacPhase)
	assert.Equal(t, "Quarantined", newLease(notReady(rackv1alpha1.ReasonKernelQuotaStuck)).MacPhase)
}

func TestOtherViews(t *testing.T) {
	instance := &instancev1alpha1.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one"}, Spec: instancev1alpha1.MacOSInstanceSpec{LeaseName: "build", StartupScript: "secret"}}
	instance.Spec.Env = []instancev1alpha1.EnvVar{{Name: "TOKEN", Value: "secret"}}
	instance.Status.Startup = &instancev1alpha1.StartupResult{Output: "secret"}
	instance.Status.Conditions = []metav1.Condition{{Type: instancev1alpha1.MacOSInstanceReconciling, Status: metav1.ConditionTrue, Reason: "Pulling", Message: "77%"}}
	view := string(viewOf(instance))
	assert.Contains(t, view, `"phase":"Pending"`)
	assert.Contains(t, view, `"reason":"Pulling","message":"77%"`)
	assert.NotContains(t, view, "secret", "scripts, variables and output do not leave the cluster")

	image := &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "macos-26"}, Spec: imagev1alpha1.MacOSImageSpec{Contents: []imagev1alpha1.ImageContent{{Name: "macOS", Version: "26.1"}}},
		Status: imagev1alpha1.MacOSImageStatus{ReplicatedOn: []string{"A", "B"}}}
	var got Image
	require.NoError(t, json.Unmarshal(viewOf(image), &got))
	assert.Equal(t, Image{Name: "macos-26", Contents: map[string]string{"macOS": "26.1"}, Phase: "Pending", Replicas: 2}, got)

	class := &rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "base"}, Status: rackv1alpha1.MacNodeClassStatus{Total: 3, Occupied: 2, Held: 1}}
	assert.Contains(t, string(viewOf(class)), `"total":3,"available":0,"occupied":2,"held":1`)
}
