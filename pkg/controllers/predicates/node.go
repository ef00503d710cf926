// Package predicates answers questions about objects: it passes their fields to the decisions of
// pkg/rules. It reads no clock and no API.
package predicates

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// IsMac reports whether the Node claims to run macOS virtual machines.
func IsMac(node *corev1.Node) bool {
	_, ok := node.Status.Capacity[rules.ResourceMacOSVM]
	return ok
}

// AdmitsTenant reports whether the Node admits pods of the tenant and of no other namespace.
func AdmitsTenant(node *corev1.Node, namespace string) bool {
	return rules.HasOnlyTaint(node.Spec.Taints, rules.TenantTaint(namespace))
}

// Scrubbed reports whether the agent has proved that nothing of the lease being released is left on
// the Mac.
func Scrubbed(mac *rackv1alpha1.MacNode, leaseUID types.UID) bool {
	return rules.Scrubbed(scrub(mac, leaseUID))
}

func scrub(mac *rackv1alpha1.MacNode, leaseUID types.UID) rules.ScrubFacts {
	facts := rules.ScrubFacts{
		Releasing: mac.Status.ReleasingSince != nil, RunningVMs: mac.Status.RunningVMs, LeaseUID: leaseUID,
		Scrubbed: meta.IsStatusConditionTrue(mac.Status.Conditions, rackv1alpha1.MacNodeScrubbed),
	}
	if report := mac.Status.Scrub; report != nil {
		facts.ReportedLease, facts.Remaining = report.LeaseUID, report.Remaining
	}
	return facts
}

// BlocksRelease returns the reason and a message for which a lease whose floor has passed keeps its
// Mac. Both are empty if nothing blocks the release.
func BlocksRelease(lease *rackv1alpha1.MacNodeLease, mac *rackv1alpha1.MacNode, taints []corev1.Taint) (reason, message string) {
	facts := rules.ReleaseFacts{
		Releasing: lease.Status.Phase == rackv1alpha1.MacNodeLeaseReleasing, Phase: string(lease.Status.Phase),
		SerialNumber: mac.Spec.SerialNumber, Scrub: scrub(mac, lease.UID), Node: mac.Name, Taints: taints,
	}
	for _, slot := range lease.Status.Instances {
		facts.Instances = append(facts.Instances, slot.Name)
	}
	return rules.BlocksRelease(facts)
}

// IsAvailable reports whether a lease of the Mac's class can be bound to the Mac.
func IsAvailable(mac *rackv1alpha1.MacNode) bool {
	return rules.CheckBind(bind(mac, mac.Spec.ClassName, "")) == nil
}

// Suits reports whether the lease accepts the Mac.
func Suits(lease *rackv1alpha1.MacNodeLease, mac *rackv1alpha1.MacNode) bool {
	return rules.CheckBind(bind(mac, lease.Spec.ClassName, lease.Spec.SerialNumber)) == nil
}

func bind(mac *rackv1alpha1.MacNode, wantedClass, wantedSerialNumber string) rules.BindFacts {
	return rules.BindFacts{
		Mac: mac.Name, Phase: string(mac.Status.Phase), Leased: mac.Status.LeaseRef != nil, Deleting: mac.DeletionTimestamp != nil,
		Class: mac.Spec.ClassName, SerialNumber: mac.Spec.SerialNumber,
		WantedClass: wantedClass, WantedSerialNumber: wantedSerialNumber,
	}
}
