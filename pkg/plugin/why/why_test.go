package why

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/plugin/plugintest"
	"macrack.io/macrack/pkg/plugin/terminal"
)

func condition(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message, LastTransitionTime: *plugintest.At(-0.5)}
}

func newLease(phase rackv1alpha1.MacNodeLeasePhase, conditions ...metav1.Condition) *rackv1alpha1.MacNodeLease {
	l := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build", UID: "lease-uid"},
		Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase, Conditions: conditions},
	}
	if phase != rackv1alpha1.MacNodeLeasePending {
		l.Status.NodeName, l.Status.SerialNumber = "mac-1", "C07DR00AQ6NV"
		l.Status.BoundAt, l.Status.EarliestReleaseAt = plugintest.At(-2), plugintest.At(22)
	}
	return l
}

func newInstance(phase instancev1alpha1.MacOSInstancePhase, conditions ...metav1.Condition) *instancev1alpha1.MacOSInstance {
	return &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one", UID: "instance-uid"},
		Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: "build", ClassName: "small", ImageName: "macos-26"},
		Status: instancev1alpha1.MacOSInstanceStatus{
			Phase: phase, Conditions: conditions, NodeName: "mac-1", SerialNumber: "C07DR00AQ6NV", PodName: "one-vm",
		},
	}
}

func newMac(phase rackv1alpha1.MacNodePhase, conditions ...metav1.Condition) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "mac-uid"},
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: "C07DR00AQ6NV", ClassName: "base"},
		Status:     rackv1alpha1.MacNodeStatus{Phase: phase, Conditions: conditions},
	}
}

func withEvents(f *plugintest.Fixture, t *testing.T) {
	t.Helper()
	for _, uid := range []types.UID{"lease-uid", "instance-uid", "another-uid"} {
		_, err := f.Kube.CoreV1().Events("acme").Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "acme", Name: string(uid)},
			InvolvedObject: corev1.ObjectReference{UID: uid}, Type: "Warning", Reason: "ReasonOf-" + string(uid),
			Message: "control \x1b[31m characters", Count: 3, LastTimestamp: *plugintest.At(-0.1),
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func record(name string, hours float64, recordType rackv1alpha1.AuditRecordType, change func(*rackv1alpha1.AuditRecord)) *rackv1alpha1.AuditRecord {
	r := &rackv1alpha1.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name}, Type: recordType,
		Time: metav1.NewMicroTime(plugintest.At(hours).Time), Actor: rackv1alpha1.AuditActor{Username: "system:serviceaccount:macrack-system:macrack-controllers"},
		Lease: &rackv1alpha1.AuditReference{UID: "lease-uid"},
	}
	if change != nil {
		change(r)
	}
	return r
}

func records() []runtime.Object {
	return []runtime.Object{
		record("2", -1, rackv1alpha1.InstanceRejected, func(r *rackv1alpha1.AuditRecord) {
			r.Actor.Username, r.Details.Reason, r.Details.Message = "acme", "TwoVMsPerChassis", "lease \"build\" has 2 of 2 instances"
		}),
		record("1", -2, rackv1alpha1.LeaseBound, nil),
		record("3", -1, rackv1alpha1.InstanceStarted, func(r *rackv1alpha1.AuditRecord) {
			r.Instance = &rackv1alpha1.AuditReference{UID: "instance-uid"}
		}),
		record("other", -1, rackv1alpha1.LeaseHeld, func(r *rackv1alpha1.AuditRecord) { r.Lease.UID = "another-uid" }),
	}
}

func TestExplanations(t *testing.T) {
	const isFalse = metav1.ConditionFalse
	held := newLease(rackv1alpha1.MacNodeLeaseHeld)
	held.DeletionTimestamp = plugintest.At(-1)
	held.Status.HeldAt = plugintest.At(-1)
	bound := newLease(rackv1alpha1.MacNodeLeaseBound)
	bound.Spec.ExpireAfter = scalar.NewDays(72 * 3600e9)
	bound.Status.Instances = []rackv1alpha1.LeaseSlot{{Name: "one"}}
	deadline := newInstance(instancev1alpha1.MacOSInstanceRunning)
	deadline.Spec.ActiveDeadlineSeconds, deadline.Status.StartedAt = ptr.To[int64](7200), plugintest.At(-1)
	failed := newInstance(instancev1alpha1.MacOSInstanceFailed, condition("Ready", isFalse, "Failed", "the virtual machine stopped unexpectedly"))
	failed.Status.StopRequest = &instancev1alpha1.StopRequest{At: *plugintest.At(-0.6), By: "acme", Reason: "Deleted"}
	failed.Status.Startup = &instancev1alpha1.StartupResult{ExitCode: 3}
	quarantined := newMac(rackv1alpha1.MacNodeQuarantined)
	quarantined.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses VMs", Since: *plugintest.At(-3)}
	quarantined.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build"}
	quarantined.Status.EarliestReleaseAt = plugintest.At(22)

	for name, tt := range map[string]struct {
		object runtime.Object
		arg    string
	}{
		"lease-pending": {newLease(rackv1alpha1.MacNodeLeasePending,
			condition("Bound", isFalse, rackv1alpha1.ReasonNoMacAvailable, "all 3 Macs of class base are leased; the earliest can be released at 2026-12-01T09:00:00Z")), "mnl/build"},
		"lease-unknown-class": {newLease(rackv1alpha1.MacNodeLeasePending, condition("Bound", isFalse, rackv1alpha1.ReasonUnknownClass, "class \"x\" does not exist")), "lease/build"},
		"lease-bound":         {bound, "mnl/build"},
		"lease-held":          {held, "macnodelease/build"},
		"lease-quarantined":   {newLease(rackv1alpha1.MacNodeLeaseBound, condition("MacReady", isFalse, "KernelQuotaStuck", "the kernel refuses VMs")), "mnl/build"},
		"lease-releasing":     {newLease(rackv1alpha1.MacNodeLeaseReleasing, condition("Released", isFalse, "Scrubbing", "waiting for Mac C07DR00AQ6NV to report a complete scrub")), "mnl/build"},
		"instance-pulling": {newInstance(instancev1alpha1.MacOSInstancePulling, condition("Scheduled", metav1.ConditionTrue, "Scheduled", ""),
			condition("ImageReady", isFalse, "Pulling", "12 of 40 GB")), "mi/one"},
		"instance-unscheduled": {newInstance(instancev1alpha1.MacOSInstancePending, condition("Scheduled", isFalse, "WaitingForScheduler", "waiting for the scheduler")), "mi/one"},
		"instance-secret":      {newInstance(instancev1alpha1.MacOSInstanceScheduled, condition("EnvironmentReady", isFalse, "SecretNotFound", "Secret \"ci\" does not exist")), "mi/one"},
		"instance-guest":       {newInstance(instancev1alpha1.MacOSInstanceRunning, condition("GuestReady", isFalse, "NoAnswer", "")), "mi/one"},
		"instance-running":     {deadline, "macosinstance/one"},
		"instance-failed":      {failed, "mi/one"},
		"mac-quarantined":      {quarantined, "mn/mac-1"},
		"mac-offline":          {newMac(rackv1alpha1.MacNodeOffline, condition("Ready", isFalse, "HeartbeatMissing", "no heartbeat for 50s")), "macnode/mac-1"},
		"mac-pending":          {newMac(""), "mn/mac-1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := plugintest.New(append(records(), tt.object)...)
			withEvents(f, t)
			golden(t, name, f.Run(t, NewCommand, tt.arg))
		})
	}
}

// golden allows long commands, which are not cut so that they can be copied.
func golden(t *testing.T, name, got string) {
	t.Helper()
	plugintest.Golden(t, name, got, 120)
}

func TestTenantWithoutEventsAndRecords(t *testing.T) {
	f := plugintest.New(newLease(rackv1alpha1.MacNodeLeaseBound))
	f.ForbidKube("list", "events", "*")
	f.ForbidMacRack("list", "auditrecords", "*")
	out := f.Run(t, NewCommand, "mnl/build")
	assert.Contains(t, out, "Lease acme/build is Bound.")
	assert.Contains(t, out, "Events are not shown: you may not list events in namespace acme\n")
	assert.Contains(t, out, "Records are not shown: you may not list auditrecords in rack.macrack.io in\nnamespace acme\n")
}

func TestJSON(t *testing.T) {
	f := plugintest.New(append(records(), newLease(rackv1alpha1.MacNodeLeasePending, condition("Bound", "False", "NoMacAvailable", "full")))...)
	withEvents(f, t)
	var e Explanation
	require.NoError(t, json.Unmarshal([]byte(f.Run(t, NewCommand, "mnl/build", "-o", "json")), &e))
	assert.Equal(t, Object{Kind: "MacNodeLease", Namespace: "acme", Name: "build"}, e.Object)
	assert.Equal(t, &Blocking{Type: "Bound", Status: "False", Reason: "NoMacAvailable", Message: "full", Since: "2026-11-30T11:30:00Z"}, e.Blocking)
	assert.Equal(t, []string{"LeaseBound", "InstanceRejected", "InstanceStarted"}, []string{e.Records[0].Type, e.Records[1].Type, e.Records[2].Type})
	assert.Len(t, e.Events, 1)
	assert.Equal(t, "ReasonOf-lease-uid", e.Events[0].Reason)
}

func TestErrors(t *testing.T) {
	f := plugintest.New()
	for _, arg := range []string{"build", "pod/build", "mnl/", "mi"} {
		assert.ErrorContains(t, f.Try(t, NewCommand, arg), "use mnl/NAME for a lease")
	}
	assert.ErrorContains(t, f.Try(t, NewCommand, "mnl/none"), `"none" not found`)
	f.ForbidMacRack("get", "macnodes", "*")
	assert.ErrorContains(t, f.Try(t, NewCommand, "mn/mac-1"), "Macs are not shown: you may not")
}

// Every line but commands fits, whatever the messages are.
func TestLinesFit(t *testing.T) {
	long := condition("Bound", "False", "NoMacAvailable", "東京東京東京 "+string(make([]byte, 300)))
	for _, line := range draw(explainLease(newLease(rackv1alpha1.MacNodeLeasePending, long), plugintest.Now), plugintest.Now, terminal.Style{Width: 40}) {
		if len(line) > 2 && line[:2] == "  " && line[2] == 'k' {
			continue
		}
		assert.LessOrEqual(t, terminal.Width(line), 40, line)
	}
}
