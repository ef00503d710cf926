package macosinstance

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestDeletedPod(t *testing.T) {
	for _, tt := range []scenario{
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
			name: "the pod cannot be read", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceScheduled)), fail: map[string]error{"read": errBroken},
			calls: []string{"read vm-1-vm"}, err: errBroken,
		},
		{name: "the pod is deleted while the agent pulls", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstancePulling))},
		{name: "the pod is deleted, and a virtual machine exists", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceRunning), withMachine), calls: []string{"read vm-1-vm"}},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestStop(t *testing.T) {
	const full = "0/3 nodes are available"
	for _, tt := range []scenario{
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
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestCleanUp(t *testing.T) {
	for _, tt := range []scenario{
		{
			name: "ended: the pod is deleted, the instance stays readable", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped), withMachine), pod: aPod("mac-1"),
			calls: []string{"delete vm-1-vm"},
		},
		{name: "ended, the pod is terminating", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceFailed)), pod: withMeta(func(m *metav1.ObjectMeta) { m.DeletionTimestamp = &noon })},
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
			instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped), withMachine), pod: ofAnotherOwner(),
		},
		{
			name: "a pod of another owner is left alone", instance: anInstance(withPod(ReasonPodRefused, ""), inPhase(instancev1alpha1.MacOSInstanceStopped)), pod: ofAnotherOwner(),
		},
		{
			name: "the pod cannot be deleted: the instance stays", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped), deleted), pod: aPod("mac-1"), fail: map[string]error{"delete": errBroken},
			calls: []string{"delete vm-1-vm"}, err: errBroken,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
