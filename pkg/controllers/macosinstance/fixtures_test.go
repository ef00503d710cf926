package macosinstance

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/rules"
)

var (
	errForbidden = apierrors.NewForbidden(corev1.Resource("pods"), "vm-1-vm", errors.New("exceeded quota"))
	errConflict  = apierrors.NewConflict(corev1.Resource("pods"), "vm-1-vm", errors.New("changed"))
	errBroken    = errors.New("broken")
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

// reported sets the instance's condition MacReady from its Mac.
func reported(mac *rackv1alpha1.MacNode) change {
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

// withMeta returns the placeholder pod of anInstance on its Node, after another client has changed
// its metadata.
func withMeta(change func(*metav1.ObjectMeta)) *corev1.Pod {
	pod := aPod("mac-1")
	change(&pod.ObjectMeta)
	return pod
}

// ofAnotherOwner returns a pod with the name of the placeholder pod, but without its owner.
func ofAnotherOwner(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := aPod("")
	pod.OwnerReferences, pod.Annotations = nil, nil
	pod.Spec.Containers[0].Resources.Limits = nil
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func terminatingSince(at time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(at)) }
}

// aLease returns the lease build of anInstance.
func aLease(phase rackv1alpha1.MacNodeLeasePhase) *rackv1alpha1.MacNodeLease {
	return &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build", UID: "uid-build"},
		Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase},
	}
}

// aNode returns the Node mac-1.
func aNode(taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: corev1.NodeSpec{Taints: taints}}
}

func running(i *instancev1alpha1.MacOSInstance) {
	i.Status.Phase = instancev1alpha1.MacOSInstanceRunning
}

var (
	bound   = aLease(rackv1alpha1.MacNodeLeaseBound)
	tenants = aNode(rules.TenantTaint("acme"))
)
