package predicates

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// conditionReason matches the valid reasons of conditions. The reason of a quarantine may be any
// text.
var conditionReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// MacReady returns the condition MacReady of leases and instances. Tenants cannot read MacNodes,
// so it reports the state of the Mac. The API server stores its reason and message as they are, so
// that a controller that compares them writes each change once.
func MacReady(mac *rackv1alpha1.MacNode) metav1.Condition {
	c := metav1.Condition{
		Type: rackv1alpha1.MacNodeLeaseConditionMacReady, Status: metav1.ConditionTrue, Reason: "Ready",
		Message: rules.HealthyMac(mac.Spec.SerialNumber),
	}
	ready := meta.FindStatusCondition(mac.Status.Conditions, rackv1alpha1.MacNodeReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse:
		c.Status, c.Reason = metav1.ConditionFalse, rackv1alpha1.ReasonMacOffline
		c.Message = fmt.Sprintf("Mac %s is offline (%s); its virtual machines may still run, and the lease keeps the Mac", mac.Spec.SerialNumber, ready.Message)
	case mac.Status.Quarantine != nil:
		c.Status, c.Reason = metav1.ConditionFalse, mac.Status.Quarantine.Reason
		if !conditionReason.MatchString(c.Reason) {
			c.Reason = "Quarantined"
		}
		c.Message = fmt.Sprintf("Mac %s is in quarantine, and no instance starts on it: %s", mac.Spec.SerialNumber, mac.Status.Quarantine.Message)
	}
	c.Message = apiclient.Message(c.Message)
	return c
}
