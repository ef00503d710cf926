// Package macnodeclass counts the Macs of each class.
package macnodeclass

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
)

// New returns the controller. Its keys are names of MacNodeClasses.
func New(deps *shared.Dependencies) *controller.Controller {
	c := controller.New("macnodeclass", deps.Clock, newReconciler(deps).reconcile)
	_, _ = deps.MacNodeClasses.Informer().AddEventHandler(controller.Handlers(func(_, after *rackv1alpha1.MacNodeClass) {
		if after != nil {
			c.Enqueue(after.Name)
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		if before != nil && after != nil && before.Status.Phase == after.Status.Phase && before.Spec.ClassName == after.Spec.ClassName &&
			(before.Status.LeaseRef == nil) == (after.Status.LeaseRef == nil) {
			return
		}
		if before != nil {
			c.Enqueue(before.Spec.ClassName)
		}
		if after != nil {
			c.Enqueue(after.Spec.ClassName)
		}
	}))
	_, _ = deps.MacNodeLeases.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNodeLease) {
		if before != nil && after != nil && before.Status.Phase != after.Status.Phase {
			c.Enqueue(after.Spec.ClassName)
		}
	}))
	return c
}

// macIndex finds Macs in the cache.
type macIndex interface {
	MacsOf(class string) ([]*rackv1alpha1.MacNode, error)
}

type reconciler struct {
	classes racklisters.MacNodeClassLister
	leases  racklisters.MacNodeLeaseLister
	macs    macIndex
	client  rackclient.MacNodeClassesGetter
}

func newReconciler(deps *shared.Dependencies) *reconciler {
	return &reconciler{
		classes: deps.MacNodeClasses.Lister(),
		leases:  deps.MacNodeLeases.Lister(),
		macs:    deps,
		client:  deps.MacRack.RackV1alpha1(),
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	class, err := r.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	macs, err := r.macs.MacsOf(name)
	if err != nil {
		return time.Time{}, err
	}
	status := r.count(macs)
	if class.Status == status {
		return time.Time{}, nil
	}
	counted := class.DeepCopy()
	counted.Status = status
	_, err = shared.PatchStatus(ctx, r.client.MacNodeClasses(), class, counted)
	return time.Time{}, err
}

// count adds each Mac to one of the counts, and each with a lease to the occupied ones.
func (r *reconciler) count(macs []*rackv1alpha1.MacNode) rackv1alpha1.MacNodeClassStatus {
	status := rackv1alpha1.MacNodeClassStatus{Total: int32(len(macs))}
	for _, mac := range macs {
		if mac.Status.LeaseRef != nil {
			status.Occupied++
		}
		switch mac.Status.Phase {
		case rackv1alpha1.MacNodeAvailable:
			status.Available++
		case rackv1alpha1.MacNodeLeased:
			if r.isHeld(mac) {
				status.Held++
			} else {
				status.Leased++
			}
		case rackv1alpha1.MacNodeReleasing:
			status.Held++
		case rackv1alpha1.MacNodeQuarantined:
			status.Quarantined++
		default:
			status.Offline++
		}
	}
	return status
}

func (r *reconciler) isHeld(mac *rackv1alpha1.MacNode) bool {
	ref := mac.Status.LeaseRef
	if ref == nil {
		return false
	}
	lease, err := r.leases.MacNodeLeases(ref.Namespace).Get(ref.Name)
	return err == nil && lease.UID == ref.UID && lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld
}
