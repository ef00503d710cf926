package macnodelease

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
)

// New returns the controllers of leases: one binds them, one reports why a lease waits, and one
// takes a bound lease to its end.
func New(deps *shared.Dependencies) []*controller.Controller {
	w := newWaiter(deps)
	waiting := controller.New("macnodelease-waiting", deps.Clock, w.reconcile)
	b := newBinder(deps, waiting)
	bind := controller.New("macnodelease-bind", deps.Clock, func(ctx context.Context, class string) (time.Time, error) {
		// A class is reconciled when a Mac or a lease of it has changed.
		w.classChanged(class)
		return b.reconcile(ctx, class)
	})
	life := controller.New("macnodelease", deps.Clock, newLifecycle(deps).reconcile)

	_, _ = deps.MacNodeLeases.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNodeLease) {
		lease := controller.Newest(before, after)
		life.Enqueue(shared.Key(lease))
		if before == nil || after == nil || !equality.Semantic.DeepEqual(binding(before), binding(after)) {
			bind.Enqueue(lease.Spec.ClassName)
		}
		if reason, message := describe(before, after); reason != "" {
			kind := corev1.EventTypeNormal
			if reason == eventMacNot {
				kind = corev1.EventTypeWarning
			}
			deps.Recorder.Event(after, kind, reason, message)
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		mac := controller.Newest(before, after)
		if ref := mac.Status.LeaseRef; ref != nil {
			life.Enqueue(ref.Namespace + "/" + ref.Name)
		}
		if before == nil || after == nil || !equality.Semantic.DeepEqual(availability(before), availability(after)) {
			if before != nil {
				bind.Enqueue(before.Spec.ClassName)
			}
			bind.Enqueue(mac.Spec.ClassName)
		}
	}))
	_, _ = deps.MacNodeClasses.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNodeClass) {
		if before == nil || after == nil {
			bind.Enqueue(controller.Newest(before, after).Name)
		}
	}))
	_, _ = deps.MacOSInstances.Informer().AddEventHandler(controller.Handlers(func(before, after *instancev1alpha1.MacOSInstance) {
		instance := controller.Newest(before, after)
		life.Enqueue(instance.Namespace + "/" + instance.Spec.LeaseName)
	}))
	_, _ = deps.Nodes.Informer().AddEventHandler(controller.Handlers(func(before, after *corev1.Node) {
		if before != nil && after != nil && equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
			return
		}
		if mac, err := deps.MacNodes.Lister().Get(controller.Newest(before, after).Name); err == nil && mac.Status.LeaseRef != nil {
			life.Enqueue(mac.Status.LeaseRef.Namespace + "/" + mac.Status.LeaseRef.Name)
		}
	}))
	return []*controller.Controller{bind, waiting, life}
}

// binding returns the fields of a lease that affect which Macs are free, and when.
func binding(lease *rackv1alpha1.MacNodeLease) any {
	return []any{lease.UID, lease.Generation, lease.Status.Phase, lease.DeletionTimestamp == nil, lease.Status.EarliestReleaseAt}
}

// availability returns the fields of a Mac that affect which lease is bound to it, and when.
func availability(mac *rackv1alpha1.MacNode) any {
	return []any{mac.UID, mac.Spec, mac.Status.Phase, mac.DeletionTimestamp == nil, mac.Status.LeaseRef, mac.Status.EarliestReleaseAt, mac.Status.ReleasingSince}
}
