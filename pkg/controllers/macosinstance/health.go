package macosinstance

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
)

// tellOfMac keeps the instance's condition MacReady true: an agent that is away cannot say so
// itself.
func (r *reconciler) tellOfMac(ctx context.Context, instance *instancev1alpha1.MacOSInstance) error {
	mac, err := r.getMac(instance.Status.NodeName)
	if err != nil {
		return ignoreNotFound(err)
	}
	c := predicates.MacReady(mac)
	c.ObservedGeneration, c.LastTransitionTime = instance.Generation, metav1.NewTime(r.now())
	after := instance.DeepCopy()
	if !meta.SetStatusCondition(&after.Status.Conditions, c) {
		return nil
	}
	_, err = r.updateState(ctx, instance, after)
	return ignoreNotFound(err)
}

// healthChanged reports whether a change of a Mac affects the condition MacReady of its instances,
// or their protection from eviction.
func healthChanged(before, after *rackv1alpha1.MacNode) bool {
	if before == nil || after == nil {
		return after != nil
	}
	return before.Spec.Maintenance != after.Spec.Maintenance || !equality.Semantic.DeepEqual(predicates.MacReady(before), predicates.MacReady(after))
}
