package macnodelease

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// reasonOffline is the reason of a Mac that is not heard of.
const reasonOffline = "Offline"

// healthOf says what a lease should say of its Mac, which its tenant cannot see: nothing, if nothing was ever wrong with it.
func healthOf(lease *rackv1alpha1.MacNodeLease, mac *rackv1alpha1.MacNode) *metav1.Condition {
	c := &metav1.Condition{
		Type: rackv1alpha1.MacNodeLeaseConditionMacReady, Status: metav1.ConditionTrue, Reason: "Ready",
		Message: fmt.Sprintf("the Mac %s is back and healthy", mac.Spec.SerialNumber),
	}
	ready := meta.FindStatusCondition(mac.Status.Conditions, rackv1alpha1.MacNodeReady)
	switch {
	case ready != nil && ready.Status == metav1.ConditionFalse:
		c.Status, c.Reason = metav1.ConditionFalse, reasonOffline
		c.Message = fmt.Sprintf("the Mac %s is away (%s); what runs on it may go on, and it stays the tenant's", mac.Spec.SerialNumber, ready.Message)
	case mac.Status.Quarantine != nil:
		c.Status, c.Reason = metav1.ConditionFalse, mac.Status.Quarantine.Reason
		c.Message = fmt.Sprintf("the Mac %s is in quarantine, and no instance starts on it: %s", mac.Spec.SerialNumber, mac.Status.Quarantine.Message)
	case meta.FindStatusCondition(lease.Status.Conditions, c.Type) == nil:
		return nil
	}
	return c
}

// tellOfMac has a lease say what is wrong with its Mac, or that it no longer is.
func (l *lifecycle) tellOfMac(ctx context.Context, lease *rackv1alpha1.MacNodeLease) (told bool, err error) {
	mac, err := l.getMac(lease.Status.NodeName)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	health := healthOf(lease, mac)
	if health == nil {
		return false, nil
	}
	told, err = setCondition(ctx, lease, *health, l.now(), l.updateState)
	return told, ignoreNotFound(err)
}
