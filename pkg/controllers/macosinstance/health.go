package macosinstance

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
)

// syncMacReady writes the instance's condition MacReady, because the agent of an offline Mac cannot
// write it.
func (r *reconciler) syncMacReady(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	after := instance.DeepCopy()
	if changed, err := r.setMacReady(after); !changed || err != nil {
		return err
	}
	_, err := shared.PatchStatus(ctx, r.instanceClient.MacOSInstances(instance.Namespace), instance, after)
	return shared.IgnoreNotFound(err)
}

// setMacReady sets the instance's condition MacReady, and reports whether it has changed. As the
// guest is unknown while the Mac is offline, GuestReady becomes Unknown at the same time, and only
// then: the agent reports it again as soon as it is back, which may be before the Mac is Ready.
func (r *reconciler) setMacReady(instance *instancev1alpha1.MacOSInstance) (changed bool, err error) {
	mac, err := r.macs.Get(instance.Status.NodeName)
	if err != nil {
		return false, shared.IgnoreNotFound(err)
	}
	c := predicates.MacReady(mac)
	c.ObservedGeneration, c.LastTransitionTime = instance.Generation, metav1.NewTime(r.clock.Now())
	if !meta.SetStatusCondition(&instance.Status.Conditions, c) {
		return false, nil
	}
	if c.Status == metav1.ConditionFalse && c.Reason == rackv1alpha1.ReasonMacOffline {
		if guest := meta.FindStatusCondition(instance.Status.Conditions, instancev1alpha1.MacOSInstanceGuestReady); guest != nil {
			meta.SetStatusCondition(&instance.Status.Conditions, metav1.Condition{
				Type: guest.Type, Status: metav1.ConditionUnknown, Reason: c.Reason, Message: c.Message,
				ObservedGeneration: c.ObservedGeneration, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return true, nil
}

// healthChanged reports whether a change of a Mac affects the condition MacReady of its instances,
// or their protection from eviction.
func healthChanged(before, after *rackv1alpha1.MacNode) bool {
	if before == nil || after == nil {
		return after != nil
	}
	return before.Spec.Maintenance != after.Spec.Maintenance || !equality.Semantic.DeepEqual(predicates.MacReady(before), predicates.MacReady(after))
}
