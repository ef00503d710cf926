package macosinstance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

func TestBudgetName(t *testing.T) {
	assert.Equal(t, "vm-1-vm-"+hash("uid-vm-1"), budgetName(anInstance()))
}

func TestPodsAreProtectedFromEviction(t *testing.T) {
	maintained := aMac(metav1.ConditionTrue)
	maintained.Spec.Maintenance = true
	weak := disruptionBudget(anInstance(named))
	weak.Spec.MinAvailable = ptr.To(intstr.FromInt32(0))
	for _, tt := range []scenario{
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
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Labels = nil }), fail: map[string]error{"protect": errForbidden},
			calls: []string{"patch vm-1-vm", "protect vm-1"}, err: errForbidden,
		},
		{
			name: "the protection was weakened", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), pod: aPod("mac-1"), budget: weak,
			calls: []string{"unprotect vm-1"},
		},
		{
			name: "the Mac is in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, reported(maintained)), pod: aPod("mac-1"), mac: maintained,
			calls: []string{"patch vm-1-vm", "unprotect vm-1"},
		},
		{
			name: "the Mac is already in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, reported(maintained)), unprotected: true, mac: maintained,
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }),
		},
		{
			name: "the Mac is no longer in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), unprotected: true,
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }), calls: []string{"patch vm-1-vm", "protect vm-1"},
		},
		{
			name: "an instance that has ended is not protected", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped)), budget: disruptionBudget(anInstance(named)),
			calls: []string{"unprotect vm-1"},
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
