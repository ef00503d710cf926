package macosinstance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestBudgetName(t *testing.T) {
	assert.Equal(t, "build-lease-"+hash("uid-build"), budgetName(bound))
}

func TestPodsAreProtectedFromEviction(t *testing.T) {
	maintained := aMac(metav1.ConditionTrue)
	maintained.Spec.Maintenance = true
	right, weak := disruptionBudget(bound), disruptionBudget(bound)
	weak.Spec.MinAvailable = ptr.To(intstr.FromInt32(0))
	own := disruptionBudget(bound) // of an earlier version
	own.Name, own.OwnerReferences = "vm-1-vm-"+hash("uid-vm-1"), placeholderMeta(anInstance()).OwnerReferences
	foreign := own.DeepCopy()
	foreign.OwnerReferences = nil
	for _, tt := range []scenario{
		{
			name: "a new instance is protected before it has a pod", instance: anInstance(), lease: bound, node: tenants, unprotected: true,
			calls: []string{"status Pending vm-1-vm False CreatingPod", "protect build", "create vm-1-vm"},
		},
		{
			name: "the protection was taken away", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, pod: aPod("mac-1"), unprotected: true,
			calls: []string{"protect build"},
		},
		{
			name: "the protection is refused, by a quota for example: the metadata of the pod is restored all the same", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, unprotected: true,
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Labels = nil }), fail: map[string]error{"protect": errForbidden},
			calls: []string{"patch vm-1-vm", "protect build"}, err: errForbidden,
		},
		{
			name: "the protection was weakened", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, pod: aPod("mac-1"), budgets: []*policyv1.PodDisruptionBudget{weak},
			calls: []string{"delete budget " + right.Name},
		},
		{
			name: "the Mac is in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, reported(maintained)), lease: bound, pod: aPod("mac-1"), mac: maintained,
			calls: []string{"patch vm-1-vm", "delete budget " + right.Name},
		},
		{
			name: "the Mac is already in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running, reported(maintained)), lease: bound, unprotected: true, mac: maintained,
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }),
		},
		{
			name: "the Mac is no longer in maintenance", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, unprotected: true,
			pod: withMeta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }), calls: []string{"patch vm-1-vm", "protect build"},
		},
		{
			name: "an instance has a budget of an earlier version", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, pod: aPod("mac-1"),
			budgets: []*policyv1.PodDisruptionBudget{right, own}, calls: []string{"delete budget " + own.Name},
		},
		{
			name: "that one protects until the lease has a budget", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, pod: aPod("mac-1"),
			budgets: []*policyv1.PodDisruptionBudget{own}, calls: []string{"protect build"},
		},
		{
			name: "a budget of the tenant with that name", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), lease: bound, pod: aPod("mac-1"),
			budgets: []*policyv1.PodDisruptionBudget{right, foreign},
		},
		{
			name: "the lease is another one, which has the same name", instance: anInstance(withPod(ReasonScheduled, ""), withMachine, running), unprotected: true, pod: aPod("mac-1"),
			lease: &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build", UID: "uid-2"}},
		},
		{
			name: "an instance that has ended leaves the budget to the others", instance: anInstance(withPod(ReasonScheduled, ""), inPhase(instancev1alpha1.MacOSInstanceStopped)), lease: bound,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
