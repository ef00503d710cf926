package macosinstance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/rules"
)

var noon = metav1.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

type change func(*instancev1alpha1.MacOSInstance)

// anInstance returns the new instance acme/vm-1 of lease build on mac-1.
func anInstance(changes ...change) *instancev1alpha1.MacOSInstance {
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: "vm-1", UID: "uid-vm-1", Finalizers: []string{"macrack.io/vm"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "build", UID: "uid-build"}},
		},
		Spec: instancev1alpha1.MacOSInstanceSpec{LeaseName: "build", ImageName: "tahoe"},
		Status: instancev1alpha1.MacOSInstanceStatus{
			Phase: instancev1alpha1.MacOSInstancePending, NodeName: "mac-1", SerialNumber: "S-1",
		},
	}
	for _, change := range changes {
		change(instance)
	}
	return instance
}

func inPhase(phase instancev1alpha1.MacOSInstancePhase) change {
	return func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = phase }
}

// withPod sets the pod's name and the condition Scheduled.
func withPod(reason, message string) change {
	return func(i *instancev1alpha1.MacOSInstance) {
		i.Status.PodName = "vm-1-vm"
		status := metav1.ConditionFalse
		if reason == ReasonScheduled {
			status = metav1.ConditionTrue
		}
		i.Status.Conditions = []metav1.Condition{{Type: "Scheduled", Status: status, Reason: reason, Message: message, LastTransitionTime: noon}}
		i.Status.Message = message
	}
}

// named sets the usual name of the pod.
func named(i *instancev1alpha1.MacOSInstance) { i.Status.PodName = "vm-1-vm" }

func withMachine(i *instancev1alpha1.MacOSInstance) { i.Status.MachineID = "machine" }
func stopAsked(i *instancev1alpha1.MacOSInstance) {
	i.Status.StopRequest = &instancev1alpha1.StopRequest{By: "acme", Reason: "Asked"}
	i.Status.Phase = instancev1alpha1.MacOSInstanceStopping
}
func deleted(i *instancev1alpha1.MacOSInstance) { i.DeletionTimestamp = &noon }

// aMac returns the Mac mac-1, with the condition Ready.
func aMac(ready metav1.ConditionStatus) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: "S-1"},
		Status: rackv1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{Type: "Ready", Status: ready, Message: "silent"}}},
	}
}

// told sets the instance's condition MacReady from its Mac.
func told(mac *rackv1alpha1.MacNode) change {
	return func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Conditions = append(i.Status.Conditions, predicates.MacReady(mac))
	}
}

func anImage() *imagev1alpha1.MacOSImage {
	return &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "tahoe"}}
}

// aPod returns the placeholder pod of anInstance, bound to the Node if one is given.
func aPod(node string, conditions ...corev1.PodCondition) *corev1.Pod {
	pod := Placeholder(anInstance(named), anImage())
	pod.UID = "uid-pod"
	pod.Spec.NodeName = node
	pod.Status.Conditions = conditions
	return pod
}

func TestReconcile(t *testing.T) {
	var (
		notFound  = apierrors.NewNotFound(corev1.Resource("pods"), "x")
		forbidden = apierrors.NewForbidden(corev1.Resource("pods"), "vm-1-vm", errors.New("exceeded quota"))
		exists    = apierrors.NewAlreadyExists(corev1.Resource("pods"), "vm-1-vm")
		conflict  = apierrors.NewConflict(corev1.Resource("pods"), "vm-1-vm", errors.New("changed"))
		broken    = errors.New("broken")
	)
	lease := func(phase rackv1alpha1.MacNodeLeasePhase) *rackv1alpha1.MacNodeLease {
		return &rackv1alpha1.MacNodeLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build", UID: "uid-build"},
			Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase},
		}
	}
	another := lease(rackv1alpha1.MacNodeLeaseBound)
	another.UID = "uid-another"
	node := func(taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	bound, tenants := lease(rackv1alpha1.MacNodeLeaseBound), node(rules.TenantTaint("acme"))
	stranger := aPod("")
	stranger.OwnerReferences, stranger.Annotations = nil, nil
	stranger.Spec.Containers[0].Resources.Limits = nil
	strangerGoing, strangerStaying := stranger.DeepCopy(), stranger.DeepCopy()
	strangerGoing.DeletionTimestamp = &noon
	strangerStaying.DeletionTimestamp = ptr.To(metav1.NewTime(noon.Add(-stopMargin)))
	next := nextPodName(anInstance(named))
	running := inPhase(instancev1alpha1.MacOSInstanceRunning)
	maintained := aMac(metav1.ConditionTrue)
	maintained.Spec.Maintenance = true
	metaChanged := func(change func(*metav1.ObjectMeta)) *corev1.Pod {
		pod := aPod("mac-1")
		change(&pod.ObjectMeta)
		return pod
	}
	weak := disruptionBudget(anInstance(named))
	weak.Spec.MinAvailable = ptr.To(intstr.FromInt32(0))
	going := aPod("mac-1")
	going.DeletionTimestamp = &noon
	unschedulable := func(message string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message}
	}
	const full = "0/3 nodes are available: 1 Insufficient macrack.io/macos-vm, 2 node(s) didn't match Pod's node affinity/selector."

	for _, tt := range []struct {
		name     string
		instance *instancev1alpha1.MacOSInstance
		lease    *rackv1alpha1.MacNodeLease
		mac      *rackv1alpha1.MacNode
		node     *corev1.Node
		pod      *corev1.Pod // in the cache
		podNow   *corev1.Pod // at the server
		// An ended instance has no budget; others have the right one, unless unprotected is set.
		unprotected bool
		budget      *policyv1.PodDisruptionBudget
		fail        map[string]error
		calls       []string
		message     string // the written message
		err         error
	}{
		{name: "gone"},

		// Changes to the pod by other clients.
		{
			name: "the label is removed: the pod is not in the cache, and gets it back", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			podNow: metaChanged(func(m *metav1.ObjectMeta) { m.Labels = nil }), calls: []string{"read vm-1-vm", "patch vm-1-vm"},
		},
		{
			name: "the label names another instance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"] = "other" }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the annotation is removed", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Annotations = nil }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the annotation names another instance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/instance-uid"] = "other" }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the owner is removed", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "the owner is removed before there is a virtual machine", instance: anInstance(withPod(ReasonScheduled, "")),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), calls: []string{"patch vm-1-vm", "status Scheduled vm-1-vm True Scheduled"},
		},
		{
			name: "a ReplicaSet adopts the pod", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) {
				m.OwnerReferences[0].Kind, m.OwnerReferences[0].UID = "ReplicaSet", "other"
			}), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "a second owner keeps the pod", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) {
				m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{UID: "other"})
			}), calls: []string{"patch vm-1-vm"},
		},
		{
			name: "all is removed", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			podNow: metaChanged(func(m *metav1.ObjectMeta) { m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil }), calls: []string{"read vm-1-vm", "patch vm-1-vm"},
		},
		{
			name: "labels and finalizers of others stay", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Labels["team"], m.Finalizers = "ios", []string{"example.com/x"} }),
		},
		{
			name: "a pod that is being deleted is left alone", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"], m.DeletionTimestamp = "other", &noon }),
		},
		{
			name: "an instance that is being deleted leaves its pod to the garbage collector", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, deleted),
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }),
		},
		{name: "a deleted pod", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), calls: []string{"read vm-1-vm"}},

		// Evictions.
		{
			name: "a new instance is protected before it has a pod", instance: anInstance(), lease: bound, node: tenants, unprotected: true,
			calls: []string{"status Pending vm-1-vm False CreatingPod", "protect vm-1", "create vm-1-vm"},
		},
		{
			name: "the protection was taken away", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), pod: aPod("mac-1"), unprotected: true,
			calls: []string{"protect vm-1"},
		},
		{
			name: "the protection is refused, by a quota for example: the metadata of the pod is restored all the same", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), unprotected: true,
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Labels = nil }), fail: map[string]error{"protect": forbidden},
			calls: []string{"patch vm-1-vm", "protect vm-1"}, err: forbidden,
		},
		{
			name: "the protection was weakened", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), pod: aPod("mac-1"), budget: weak,
			calls: []string{"unprotect vm-1"},
		},
		{
			name: "the Mac is in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, told(maintained)), pod: aPod("mac-1"), mac: maintained,
			calls: []string{"patch vm-1-vm", "unprotect vm-1"},
		},
		{
			name: "the Mac is already in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, told(maintained)), unprotected: true, mac: maintained,
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }),
		},
		{
			name: "the Mac is no longer in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), unprotected: true,
			pod: metaChanged(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }), calls: []string{"patch vm-1-vm", "protect vm-1"},
		},
		{
			name: "an instance that has ended is not protected", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped)), budget: disruptionBudget(anInstance(named)),
			calls: []string{"unprotect vm-1"},
		},

		// Start.
		{
			name: "the Node has the tenant's taint: the pod's name is stored, then the pod is created", instance: anInstance(), lease: bound, node: tenants,
			calls: []string{"status Pending vm-1-vm False CreatingPod", "create vm-1-vm"},
		},
		{
			name: "on a Held lease", instance: anInstance(), lease: lease(rackv1alpha1.MacNodeLeaseHeld), node: tenants,
			calls: []string{"status Pending vm-1-vm False CreatingPod", "create vm-1-vm"},
		},
		{name: "on a lease that is being released", instance: anInstance(), lease: lease(rackv1alpha1.MacNodeLeaseReleasing), node: tenants},
		{name: "the lease is gone", instance: anInstance(), node: tenants},
		{name: "a new lease has the same name", instance: anInstance(), lease: another, node: tenants},
		{
			name: "the Node does not exist", instance: anInstance(), lease: bound,
			calls:   []string{"status Pending - False WaitingForNode"},
			message: "Node mac-1 not found; the agent of the Mac has not registered it",
		},
		{
			name: "the Node is unleased", instance: anInstance(), lease: bound, node: node(rules.UnleasedTaint()),
			calls: []string{"status Pending - False WaitingForNode"}, message: "Node mac-1 does not have the tenant's taint yet",
		},
		{
			name: "the Node has both taints", instance: anInstance(), lease: bound, node: node(rules.TenantTaint("acme"), rules.UnleasedTaint()),
			calls: []string{"status Pending - False WaitingForNode"},
		},
		{
			name: "the Node has another tenant's taint", instance: anInstance(), lease: bound, node: node(rules.TenantTaint("globex")),
			calls: []string{"status Pending - False WaitingForNode"},
		},
		{
			name: "the Node has no taint", instance: anInstance(), lease: bound, node: node(),
			calls: []string{"status Pending - False WaitingForNode"},
		},
		{
			name: "the name cannot be stored: no pod", instance: anInstance(), lease: bound, node: tenants, fail: map[string]error{"status": conflict},
			calls: []string{"status Pending vm-1-vm False CreatingPod"}, err: conflict,
		},
		{
			name: "the name was stored, but the pod was not created", instance: anInstance(withPod(ReasonCreatingPod, "the placeholder pod is being created")), lease: bound, node: tenants,
			calls: []string{"create vm-1-vm"},
		},
		{
			name: "the pod was created, but is not in the cache", instance: anInstance(withPod(ReasonCreatingPod, "the placeholder pod is being created")), lease: bound, node: tenants,
			podNow: aPod(""), fail: map[string]error{"create": exists},
			calls: []string{"create vm-1-vm", "read vm-1-vm"},
		},
		{
			name: "the name is in use: another is stored", instance: anInstance(withPod(ReasonCreatingPod, "x")), lease: bound, node: tenants, podNow: stranger, fail: map[string]error{"create": exists},
			calls:   []string{"create vm-1-vm", "read vm-1-vm", "status Pending " + next + " False PodNameTaken"},
			message: "pod name vm-1-vm already in use; the placeholder pod is named " + next,
		},
		{
			name: "the other name is stored: the pod gets it", instance: anInstance(withPod(ReasonPodNameTaken, "x"), func(i *instancev1alpha1.MacOSInstance) { i.Status.PodName = next }), lease: bound, node: tenants,
			calls: []string{"create " + next},
		},
		{
			name: "an earlier instance's pod has the name, and is terminating", instance: anInstance(withPod(ReasonCreatingPod, "x")), lease: bound, node: tenants, podNow: strangerGoing, fail: map[string]error{"create": exists},
			calls:   []string{"create vm-1-vm", "read vm-1-vm", "status Pending vm-1-vm False PodRefused"},
			message: "placeholder pod refused: pod vm-1-vm of another owner is still being deleted",
			err:     errors.New("is still being deleted"),
		},
		{
			name: "a pod that does not terminate has the name", instance: anInstance(withPod(ReasonPodRefused, "x")), lease: bound, node: tenants, podNow: strangerStaying, fail: map[string]error{"create": exists},
			calls: []string{"create vm-1-vm", "read vm-1-vm", "status Pending " + next + " False PodNameTaken"},
		},
		{
			name: "the pod is refused", instance: anInstance(), lease: bound, node: tenants, fail: map[string]error{"create": forbidden},
			calls:   []string{"status Pending vm-1-vm False CreatingPod", "create vm-1-vm", "status Pending vm-1-vm False PodRefused"},
			message: "placeholder pod refused: " + forbidden.Error(), err: forbidden,
		},
		{
			name:     "the pod is refused again: no write",
			instance: anInstance(withPod(ReasonPodRefused, "placeholder pod refused: "+forbidden.Error())), lease: bound, node: tenants, fail: map[string]error{"create": forbidden},
			calls: []string{"create vm-1-vm"}, err: forbidden,
		},
		{
			name: "the pod is no longer refused", instance: anInstance(withPod(ReasonPodRefused, "x")), lease: bound, node: tenants,
			calls: []string{"create vm-1-vm"},
		},
		{
			name: "the API server fails", instance: anInstance(withPod(ReasonCreatingPod, "x")), lease: bound, node: tenants, fail: map[string]error{"create": broken},
			calls: []string{"create vm-1-vm"}, err: broken,
		},

		// Scheduling.
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
			node:    node(rules.TenantTaint("acme"), corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "far", Effect: corev1.TaintEffectPreferNoSchedule}),
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
			name: "the scheduler enforces the tenant of the Node: recorded", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable("untolerated taint")), node: node(rules.TenantTaint("globex")),
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1", "status Pending vm-1-vm False Unschedulable"},
		},
		{
			name: "the rejection is shown only after it is recorded", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable(full)), node: tenants, fail: map[string]error{"record": broken},
			calls: []string{"record InstanceRejected Scheduler mac-1 build vm-1"}, err: broken,
		},
		{
			name: "a refusal of the record does not block the instance", instance: anInstance(withPod(ReasonCreatingPod, "x")), pod: aPod("", unschedulable(full)), node: tenants, fail: map[string]error{"record": forbidden},
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

		// The pod is deleted.
		{
			name: "the pod is gone before anything ran", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceScheduled)),
			calls: []string{"read vm-1-vm", "status Stopped vm-1-vm True Scheduled"}, message: rules.DescribeLoss("vm-1-vm"),
		},
		{
			name: "an unscheduled pod is deleted, and not created again", instance: anInstance(withPod(ReasonWaitingForScheduler, "x")), lease: bound, node: tenants,
			calls: []string{"read vm-1-vm", "status Stopped vm-1-vm False WaitingForScheduler"}, message: rules.DescribeLoss("vm-1-vm"),
		},
		{
			name: "the pod exists, but the cache is stale", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceScheduled)), podNow: aPod("mac-1"),
			calls: []string{"read vm-1-vm"},
		},
		{
			name: "the pod cannot be read", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceScheduled)), fail: map[string]error{"read": broken},
			calls: []string{"read vm-1-vm"}, err: broken,
		},
		{name: "the pod is deleted while the agent pulls", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstancePulling))},
		{name: "the pod is deleted, and a virtual machine exists", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceRunning), withMachine), calls: []string{"read vm-1-vm"}},

		// Stop.
		{
			name: "stopped before there was a pod", instance: anInstance(stopAsked), lease: bound, node: tenants,
			calls: []string{"status Stopped - -"}, message: "stopped before its virtual machine started",
		},
		{
			name: "deleted before there was a pod", instance: anInstance(deleted), lease: bound, node: tenants,
			calls: []string{"status Stopped - -"}, message: "stopped before its virtual machine started",
		},
		{
			name: "stopped before the pod was created", instance: anInstance(withPod(ReasonCreatingPod, "x"), stopAsked), lease: bound, node: tenants,
			calls: []string{"read vm-1-vm", "status Stopped vm-1-vm False CreatingPod"}, message: "stopped before its virtual machine started",
		},
		{
			name: "stopped while the pod waits for the scheduler: the pod goes first", instance: anInstance(withPod(ReasonUnschedulable, full), stopAsked), pod: aPod(""),
			calls: []string{"delete vm-1-vm"},
		},
		{name: "stopped on the Node: left to the agent", instance: anInstance(withPod(ReasonScheduled, ""), stopAsked), pod: aPod("mac-1")},
		{
			name: "stopped, and the pod is gone", instance: anInstance(withPod(ReasonScheduled, ""), stopAsked),
			calls: []string{"read vm-1-vm", "status Stopped vm-1-vm True Scheduled"}, message: "stopped before its virtual machine started",
		},
		{
			name: "stopped, and the pod exists, but the cache is stale", instance: anInstance(withPod(ReasonCreatingPod, "x"), stopAsked), podNow: aPod(""),
			calls: []string{"read vm-1-vm"},
		},
		{name: "the stop of a virtual machine is left to the agent", instance: anInstance(withPod(ReasonScheduled, ""), stopAsked, withMachine, deleted)},

		// The Mac.
		{
			name: "running: the Mac is offline", instance: anInstance(inPhase("Running"), withMachine), mac: aMac(metav1.ConditionFalse),
			calls: []string{"status Running - False Offline"},
		},
		{name: "running: the Mac is offline, which is already reported", instance: anInstance(inPhase("Running"), withMachine, told(aMac(metav1.ConditionFalse))), mac: aMac(metav1.ConditionFalse)},
		{
			name: "stopping: the Mac is back", instance: anInstance(stopAsked, withMachine, told(aMac(metav1.ConditionFalse))), mac: aMac(metav1.ConditionTrue),
			calls: []string{"status Stopping - True Ready"},
		},
		{name: "ended: the next tenant has the Mac", instance: anInstance(inPhase("Stopped"), withMachine), mac: aMac(metav1.ConditionFalse)},

		// End.
		{
			name: "ended: the pod is deleted, the instance stays readable", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped), withMachine), pod: aPod("mac-1"),
			calls: []string{"delete vm-1-vm"},
		},
		{name: "ended, the pod is terminating", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceFailed)), pod: going},
		{
			name: "ended and deleted", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceFailed), deleted, withMachine), pod: aPod("mac-1"),
			calls: []string{"delete vm-1-vm", "finalizers "},
		},
		{
			name: "ended and deleted, with finalizers of others", instance: anInstance(inPhase(instancev1alpha1.MacOSInstanceStopped), deleted, func(i *instancev1alpha1.MacOSInstance) { i.Finalizers = []string{"a/b", "macrack.io/vm", "c/d"} }),
			calls: []string{"finalizers a/b c/d"},
		},
		{name: "ended and deleted, without MacRack's finalizer", instance: anInstance(inPhase(instancev1alpha1.MacOSInstanceStopped), deleted, func(i *instancev1alpha1.MacOSInstance) { i.Finalizers = []string{"a/b"} })},
		{
			name:     "a pod of another owner with the placeholder's name is left alone",
			instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped), withMachine), pod: stranger,
		},
		{
			name: "a pod of another owner is left alone", instance: anInstance(withPod(ReasonPodRefused, ""), inPhase(instancev1alpha1.MacOSInstanceStopped)), pod: stranger,
		},
		{
			name: "the pod cannot be deleted: the instance stays", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped), deleted), pod: aPod("mac-1"), fail: map[string]error{"delete": broken},
			calls: []string{"delete vm-1-vm"}, err: broken,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var calls []string
			var written *instancev1alpha1.MacOSInstance
			call := func(verb string, args ...any) error {
				calls = append(calls, strings.TrimSuffix(verb+" "+fmt.Sprintln(args...), "\n"))
				return tt.fail[verb]
			}
			original := tt.instance.DeepCopy()
			if tt.budget == nil && !tt.unprotected && tt.instance != nil && !rules.InstanceEnded(tt.instance.Status.Phase) {
				tt.budget = disruptionBudget(anInstance(named))
			}
			r := &reconciler{
				now: noon.Time.UTC,
				getInstance: func(_, name string) (*instancev1alpha1.MacOSInstance, error) {
					return orNotFound(tt.instance, notFound)
				},
				getLease: func(_, name string) (*rackv1alpha1.MacNodeLease, error) { return orNotFound(tt.lease, notFound) },
				getImage: func(string) (*imagev1alpha1.MacOSImage, error) { return anImage(), nil },
				getMac:   func(string) (*rackv1alpha1.MacNode, error) { return orNotFound(tt.mac, notFound) },
				getNode:  func(name string) (*corev1.Node, error) { return orNotFound(tt.node, notFound) },
				getPod:   func(_, name string) (*corev1.Pod, error) { return orNotFound(tt.pod, notFound) },
				readPod: func(_ context.Context, _, name string) (*corev1.Pod, error) {
					if err := call("read", name); err != nil {
						return nil, err
					}
					return orNotFound(tt.podNow, notFound)
				},
				createPod: func(_ context.Context, pod *corev1.Pod) (*corev1.Pod, error) { return pod, call("create", pod.Name) },
				deletePod: func(_ context.Context, pod *corev1.Pod) error { return call("delete", pod.Name) },
				patchPod:  func(_ context.Context, pod *corev1.Pod, _ []byte) error { return call("patch", pod.Name) },
				getBudget: func(_, name string) (*policyv1.PodDisruptionBudget, error) {
					assert.Equal(t, "vm-1-vm-"+hash("uid-vm-1"), name)
					return orNotFound(tt.budget, notFound)
				},
				createBudget: func(_ context.Context, budget *policyv1.PodDisruptionBudget) error {
					assert.Equal(t, disruptionBudget(anInstance(named)), budget)
					return call("protect", budget.Labels["macrack.io/instance"])
				},
				deleteBudget: func(_ context.Context, budget *policyv1.PodDisruptionBudget) error {
					assert.Equal(t, budgetName(anInstance()), budget.Name)
					return call("unprotect", budget.Labels["macrack.io/instance"])
				},
				update: func(_ context.Context, _, i *instancev1alpha1.MacOSInstance) error {
					return call("finalizers", strings.Join(i.Finalizers, " "))
				},
				updateState: func(_ context.Context, _, i *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
					written = i
					podName, condition := "-", "-"
					if i.Status.PodName != "" {
						podName = i.Status.PodName
					}
					for _, c := range i.Status.Conditions {
						condition = string(c.Status) + " " + c.Reason
					}
					return i, call("status", i.Status.Phase, podName, condition)
				},
				record: func(_ context.Context, record *rackv1alpha1.AuditRecord) error {
					assert.Equal(t, "acme", record.Tenant)
					assert.Equal(t, "acme", record.Namespace)
					assert.NotEmpty(t, record.Details.Message)
					return call("record", record.Type, record.Details.Layer, record.Chassis.NodeName, record.Lease.Name, record.Instance.Name)
				},
			}
			due, err := r.reconcile(t.Context(), "acme/vm-1")
			if tt.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.err.Error())
			}
			assert.Zero(t, due)
			assert.Equal(t, tt.calls, calls)
			assert.Equal(t, original, tt.instance, "the cache was changed")
			if tt.message != "" {
				require.NotNil(t, written)
				assert.Equal(t, tt.message, written.Status.Message)
			}
		})
	}
}

func orNotFound[T any](object *T, notFound error) (*T, error) {
	if object == nil {
		return nil, notFound
	}
	return object, nil
}

func TestDescribe(t *testing.T) {
	const normal, warning = corev1.EventTypeNormal, corev1.EventTypeWarning
	message := func(m string) change { return func(i *instancev1alpha1.MacOSInstance) { i.Status.Message = m } }
	for _, tt := range []struct {
		name          string
		before, after *instancev1alpha1.MacOSInstance
		want          []string
	}{
		{"new", nil, anInstance(), []string{"", "", ""}},
		{"gone", anInstance(), nil, []string{"", "", ""}},
		{"unchanged", anInstance(), anInstance(), []string{"", "", ""}},
		{"a new instance of the same name", anInstance(), anInstance(inPhase("Running"), func(i *instancev1alpha1.MacOSInstance) { i.UID = "new" }), []string{"", "", ""}},
		{"scheduled", anInstance(), anInstance(withPod(ReasonScheduled, ""), inPhase("Scheduled")), []string{normal, "Scheduled", "placeholder pod vm-1-vm bound to Node mac-1"}},
		{"pulling", anInstance(), anInstance(inPhase("Pulling")), []string{"", "", ""}},
		{"running", anInstance(), anInstance(inPhase("Running")), []string{normal, "Started", "virtual machine started on Mac S-1"}},
		{"stopping", anInstance(), anInstance(stopAsked), []string{normal, "Stopping", "asked to stop by acme (Asked)"}},
		{"stopped", anInstance(), anInstance(inPhase("Stopped"), message("why")), []string{normal, "Stopped", "why"}},
		{"failed", anInstance(), anInstance(inPhase("Failed"), message("why")), []string{warning, "Failed", "why"}},
		{"refused", anInstance(), anInstance(withPod(ReasonPodRefused, "quota")), []string{warning, "PodRefused", "quota"}},
		{"refused again", anInstance(withPod(ReasonPodRefused, "quota")), anInstance(withPod(ReasonPodRefused, "quota")), []string{"", "", ""}},
		{"unschedulable", anInstance(withPod(ReasonWaitingForScheduler, "")), anInstance(withPod(ReasonUnschedulable, "full")), []string{warning, "Unschedulable", "full"}},
		{"the Node does not exist", anInstance(), anInstance(withPod(ReasonWaitingForNode, "no Node")), []string{normal, "WaitingForNode", "no Node"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eventType, reason, message := describe(tt.before, tt.after)
			assert.Equal(t, tt.want, []string{eventType, reason, message})
		})
	}
}

func TestMend(t *testing.T) {
	pod := aPod("mac-1")
	pod.ResourceVersion = "7"
	none, err := mend(anInstance(named), pod, false)
	require.NoError(t, err)
	assert.Nil(t, none)
	pod.Labels = map[string]string{"team": "ios"}
	pod.Annotations = map[string]string{"note": "x", "macrack.io/maintenance": "true"}
	pod.OwnerReferences = nil
	patch, err := mend(anInstance(named), pod, false)
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata":{"uid":"uid-pod","resourceVersion":"7","labels":{"macrack.io/instance":"vm-1"},
		"annotations":{"macrack.io/instance-uid":"uid-vm-1","macrack.io/maintenance":null},
		"ownerReferences":[{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","name":"vm-1","uid":"uid-vm-1","controller":true,"blockOwnerDeletion":true}]}}`, string(patch))
	patch, err = mend(anInstance(named), aPod("mac-1"), true)
	require.NoError(t, err)
	assert.Contains(t, string(patch), `"macrack.io/maintenance":"true"`)
}
