// Package facts has what several controllers ask of objects: is this Node ready for its tenant, is that Mac
// empty, does this instance belong to that lease. Nothing here reads a clock or an API.
package facts

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Unleased returns the taint of a Node whose Mac belongs to nobody.
func Unleased() corev1.Taint {
	return corev1.Taint{Key: rules.TaintUnleased, Effect: corev1.TaintEffectNoSchedule}
}

// Tenant returns the taint of a Node whose Mac belongs to the tenant.
func Tenant(namespace string) corev1.Taint {
	return corev1.Taint{Key: rules.TaintTenant, Value: namespace, Effect: corev1.TaintEffectNoSchedule}
}

// IsOurs says whether the taint has one of the two keys.
func IsOurs(t corev1.Taint) bool {
	return t.Key == rules.TaintUnleased || t.Key == rules.TaintTenant
}

// IsMac says whether the Node claims to run macOS virtual machines.
func IsMac(node *corev1.Node) bool {
	_, ok := node.Status.Capacity[rules.ResourceMacOSVM]
	return ok
}

// AdmitsTenant says whether the Node is marked as the tenant's and as nobody else's.
func AdmitsTenant(node *corev1.Node, namespace string) bool {
	return onlyOurs(node, Tenant(namespace))
}

// AdmitsNobody says whether the Node is marked as unleased and as nobody's.
func AdmitsNobody(node *corev1.Node) bool {
	return onlyOurs(node, Unleased())
}

// onlyOurs says whether taint is the one of ours that node has.
func onlyOurs(node *corev1.Node, taint corev1.Taint) bool {
	found := false
	for _, t := range node.Spec.Taints {
		if !IsOurs(t) {
			continue
		}
		if t.Key != taint.Key || t.Value != taint.Value || t.Effect != taint.Effect {
			return false
		}
		found = true
	}
	return found
}

// TaintStrings returns the taints as key=value:effect, or key:effect if the value is empty, in order.
func TaintStrings(taints []corev1.Taint) []string {
	list := make([]string, 0, len(taints))
	for _, t := range taints {
		list = append(list, t.ToString())
	}
	slices.Sort(list)
	return list
}

// Emptied says whether the agent has proved that nothing of the lease, which is being released, is left on the Mac.
func Emptied(mac *rackv1alpha1.MacNode, leaseUID types.UID) bool {
	return mac.Status.ReleasingSince != nil &&
		mac.Status.RunningVMs == 0 &&
		mac.Status.Scrub != nil &&
		mac.Status.Scrub.LeaseUID == leaseUID &&
		len(mac.Status.Scrub.Remaining) == 0 &&
		meta.IsStatusConditionTrue(mac.Status.Conditions, rackv1alpha1.MacNodeScrubbed)
}

// IsAvailable says whether a lease can be bound to the Mac.
func IsAvailable(mac *rackv1alpha1.MacNode) bool {
	return mac.Status.Phase == rackv1alpha1.MacNodeAvailable && mac.Status.LeaseRef == nil && mac.DeletionTimestamp == nil
}
