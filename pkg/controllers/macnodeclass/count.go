// Package macnodeclass counts the Macs of each class.
package macnodeclass

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
)

// New returns the controller. Its keys are names of MacNodeClasses.
func New(deps *shared.Dependencies) *controller.Controller {
	r := &reconciler{
		getClass: deps.MacNodeClasses.Lister().Get,
		macsOf:   deps.MacsOf,
		getLease: deps.GetLease,
		updateState: func(ctx context.Context, before, after *rackv1alpha1.MacNodeClass) error {
			patch, err := apiclient.StatusPatch(before, after)
			if err != nil {
				return err
			}
			_, err = deps.MacRack.RackV1alpha1().MacNodeClasses().Patch(ctx, after.Name, apiclient.PatchType, patch, metav1.PatchOptions{FieldManager: shared.FieldManager}, "status")
			return err
		},
	}
	c := controller.New("macnodeclass", deps.Clock, r.reconcile)
	_, _ = deps.MacNodeClasses.Informer().AddEventHandler(controller.Handlers(func(_, after *rackv1alpha1.MacNodeClass) {
		if after != nil {
			c.Enqueue(after.Name)
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		if before != nil && after != nil && before.Status.Phase == after.Status.Phase && before.Spec.ClassName == after.Spec.ClassName {
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

type reconciler struct {
	getClass    func(name string) (*rackv1alpha1.MacNodeClass, error)
	macsOf      func(class string) ([]*rackv1alpha1.MacNode, error)
	getLease    func(namespace, name string) (*rackv1alpha1.MacNodeLease, error)
	updateState func(ctx context.Context, before, after *rackv1alpha1.MacNodeClass) error
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	class, err := r.getClass(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	macs, err := r.macsOf(name)
	if err != nil {
		return time.Time{}, err
	}
	status := r.count(macs)
	if class.Status == status {
		return time.Time{}, nil
	}
	counted := class.DeepCopy()
	counted.Status = status
	return time.Time{}, r.updateState(ctx, class, counted)
}

// count adds each Mac to one of the counts.
func (r *reconciler) count(macs []*rackv1alpha1.MacNode) rackv1alpha1.MacNodeClassStatus {
	status := rackv1alpha1.MacNodeClassStatus{Total: int32(len(macs))}
	for _, mac := range macs {
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
	lease, err := r.getLease(ref.Namespace, ref.Name)
	return err == nil && lease.UID == ref.UID && lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld
}
