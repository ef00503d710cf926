package macosinstance

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestScheduling(t *testing.T) {
	unschedulable := func(message string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}
	}
	const full = "0/3 nodes are available: 1 Insufficient macrack.io/macos-vm, 2 node(s) didn't match Pod's node affinity/selector."
	quarantined := aMac(metav1.ConditionTrue)
	quarantined.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses"}
	const (
		waiting = "waiting for the end of the quarantine (KernelQuotaStuck) of Mac S-1; the scheduler reports: " + full
		ended   = "the quarantine of the Mac has ended; before that, the scheduler reported: " + full
	)
	readyFor := func(d time.Duration) change {
		return func(i *instancev1alpha1.MacOSInstance) {
			i.Status.Conditions = append(i.Status.Conditions, metav1.Condition{Type: "MacReady", Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-d))})
		}
	}
	long := full + strings.Repeat("x", 2*apiclient.MaxMessage)
	for _, tt := range []scenario{
		{
			name: "not seen by the scheduler yet", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod(""),
			calls: []string{"status Pending vm-1-vm False WaitingForScheduler"},
		},
		{
			name: "unschedulable", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable("node(s) were unschedulable")), node: tenants,
			calls: []string{"status Pending vm-1-vm False Unschedulable"}, message: "node(s) were unschedulable",
		},
		{
			name: "unschedulable: the Node is not ready", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable("untolerated taint(s)")),
			node:    aNode(rules.TenantTaint("acme"), corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "far", Effect: corev1.TaintEffectPreferNoSchedule}),
			calls:   []string{"status Pending vm-1-vm False Unschedulable"},
			message: "Node mac-1 is tainted node.kubernetes.io/not-ready:NoSchedule, so the placeholder pod waits; the scheduler reports: untolerated taint(s)",
		},
		{
			name: "unschedulable since before", instance: anInstance(withPod(ReasonUnschedulable, full)), pod: aPod("", unschedulable(full)), node: tenants,
		},
		{
			name: "the scheduler enforces the slots of the Node: recorded", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable(full)), node: tenants,
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"}, message: full,
		},
		{
			name: "the Mac is in quarantine: the instance waits, and nothing is recorded", instance: anInstance(withPod(ReasonCreatingPod, "x"), reported(quarantined)),
			pod: aPod("", unschedulable(full)), node: tenants, mac: quarantined,
			calls: []string{"status Pending vm-1-vm False MacQuarantined"}, message: waiting,
		},
		{
			name: "the Mac is still in quarantine", instance: anInstance(withPod(ReasonMacQuarantined, waiting), reported(quarantined)),
			pod: aPod("", unschedulable(full)), node: tenants, mac: quarantined,
		},
		{
			name: "the quarantine has ended: the scheduler's message is stale, and nothing is recorded", instance: anInstance(withPod(ReasonMacQuarantined, waiting)),
			pod: aPod("", unschedulable(full)), node: tenants,
			calls: []string{"status Pending vm-1-vm False WaitingForScheduler"}, message: ended,
		},
		{
			name: "the quarantine has ended, and the message is still stale", instance: anInstance(withPod(ReasonWaitingForScheduler, ended), readyFor(staleFor-time.Second)),
			pod: aPod("", unschedulable(full)), node: tenants, due: time.Second,
		},
		{
			name: "the quarantine has ended, and the Mac is offline", instance: anInstance(withPod(ReasonWaitingForScheduler, ended), reported(aMac(metav1.ConditionFalse))),
			pod: aPod("", unschedulable(full)), node: tenants, mac: aMac(metav1.ConditionFalse),
		},
		{
			name: "the quarantine has ended, and the scheduler has had the time to look again: recorded", instance: anInstance(withPod(ReasonWaitingForScheduler, ended), readyFor(staleFor)),
			pod: aPod("", unschedulable(full)), node: tenants,
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"}, message: full,
		},
		{
			name: "the quarantine with a long message has ended", instance: anInstance(withPod(ReasonMacQuarantined, apiclient.Message(strings.Replace(waiting, full, long, 1)))),
			pod: aPod("", unschedulable(long)), node: tenants,
			calls: []string{"status Pending vm-1-vm False WaitingForScheduler"}, message: apiclient.Message(strings.Replace(ended, full, long, 1)),
		},
		{
			name: "a long message is still stale", instance: anInstance(withPod(ReasonWaitingForScheduler, apiclient.Message(strings.Replace(ended, full, long, 1)))),
			pod: aPod("", unschedulable(long)), node: tenants,
		},
		{
			name: "the Mac is in quarantine, and the scheduler enforces the tenant of its Node: recorded", instance: anInstance(withPod(ReasonMacQuarantined, waiting), reported(quarantined)),
			pod: aPod("", unschedulable("untolerated taint")), node: aNode(rules.TenantTaint("globex")), mac: quarantined,
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"},
		},
		{
			name: "the quarantine has ended, and the Node belongs to another tenant: recorded", instance: anInstance(withPod(ReasonWaitingForScheduler, ended)),
			pod: aPod("", unschedulable(full)), node: aNode(rules.TenantTaint("globex")),
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"},
		},
		{
			name: "the quarantine has ended, and the scheduler enforces the slots again: recorded", instance: anInstance(withPod(ReasonWaitingForScheduler, ended)),
			pod: aPod("", unschedulable("1 "+full)), node: tenants,
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"}, message: "1 " + full,
		},
		{
			name: "the scheduler enforces the tenant of the Node: recorded", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable("untolerated taint")), node: aNode(rules.TenantTaint("globex")),
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"},
		},
		{
			name: "the rejection is shown only after it is recorded", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable(full)), node: tenants, fail: map[string]error{"record": errBroken},
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1"}, err: errBroken,
		},
		{
			name: "a refusal of the record does not block the instance", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable(full)), node: tenants, fail: map[string]error{"record": errForbidden},
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"},
		},
		{
			name: "scheduled", instance: anInstance(withPod(ReasonUnschedulable, full)), pod: aPod("mac-1"),
			calls: []string{"status Scheduled vm-1-vm True Scheduled"},
		},
		{
			name: "on another Node", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("mac-2"),
			calls: []string{"status Pending vm-1-vm False Unschedulable"}, message: "placeholder pod bound to Node mac-2 instead of mac-1",
		},
		{name: "scheduled since before", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceScheduled)), pod: aPod("mac-1")},
		{
			name: "the agent was faster", instance: anInstance(withPod(ReasonWaitingForScheduler, "x"), inPhase(instancev1alpha1.MacOSInstancePulling)), pod: aPod("mac-1"),
			calls: []string{"status Pulling vm-1-vm True Scheduled"}, message: "x",
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
