package macnodelease

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
)

// New returns the controllers of leases: one binds them, one reports why a lease waits, and one
// takes a bound lease to its end.
func New(deps *shared.Dependencies) []*controller.Controller {
	leases := deps.MacRack.RackV1alpha1().MacNodeLeases
	created := metav1.CreateOptions{FieldManager: shared.FieldManager}
	updateState := func(ctx context.Context, before, after *rackv1alpha1.MacNodeLease) error {
		patch, err := apiclient.StatusPatch(before, after)
		if err != nil {
			return err
		}
		_, err = leases(before.Namespace).Patch(ctx, after.Name, apiclient.PatchType, patch, metav1.PatchOptions{FieldManager: shared.FieldManager}, "status")
		return err
	}
	classExists := func(class string) (bool, error) {
		_, err := deps.MacNodeClasses.Lister().Get(class)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	}

	w := &waiter{
		now:         deps.Clock.Now,
		getLease:    deps.GetLease,
		classExists: classExists,
		macsOf:      deps.MacsOf,
		updateState: updateState,
	}
	waiting := controller.New("macnodelease-waiting", deps.Clock, w.reconcile)

	b := &binder{
		leasesOf: deps.LeasesOf,
		macsOf:   deps.MacsOf,
		readLease: func(ctx context.Context, namespace, name string) (*rackv1alpha1.MacNodeLease, error) {
			return leases(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		readMac: func(ctx context.Context, name string) (*rackv1alpha1.MacNode, error) {
			return deps.MacRack.RackV1alpha1().MacNodes().Get(ctx, name, metav1.GetOptions{})
		},
		bind: func(ctx context.Context, lease *rackv1alpha1.MacNodeLease, nodeName string) error {
			_, err := leases(lease.Namespace).Bind(ctx, lease.Name, &rackv1alpha1.MacNodeLeaseBinding{ObjectMeta: metav1.ObjectMeta{UID: lease.UID}, NodeName: nodeName}, created)
			return err
		},
		refused: func(lease *rackv1alpha1.MacNodeLease, nodeName string, err error) {
			deps.Recorder.Eventf(lease, corev1.EventTypeWarning, eventBindFailed, "binding to MacNode %s refused: %v", nodeName, err)
		},
		waits: func(lease *rackv1alpha1.MacNodeLease) { waiting.Enqueue(shared.Key(lease)) },
	}
	bind := controller.New("macnodelease-bind", deps.Clock, func(ctx context.Context, class string) (time.Time, error) {
		// A class is reconciled when a Mac or a lease of it has changed.
		w.classChanged(class)
		return b.reconcile(ctx, class)
	})

	life := controller.New("macnodelease", deps.Clock, (&lifecycle{
		now:         deps.Clock.Now,
		getLease:    deps.GetLease,
		instancesOf: deps.InstancesOf,
		getMac:      deps.MacNodes.Lister().Get,
		getNode:     deps.Nodes.Lister().Get,
		readNode: func(ctx context.Context, name string) (*corev1.Node, error) {
			return deps.Core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		},
		stop: func(ctx context.Context, instance *instancev1alpha1.MacOSInstance, reason string) error {
			_, err := deps.MacRack.InstanceV1alpha1().MacOSInstances(instance.Namespace).Stop(ctx, instance.Name, &instancev1alpha1.MacOSInstanceStop{ObjectMeta: metav1.ObjectMeta{UID: instance.UID}, Reason: reason}, created)
			return err
		},
		readLease: func(ctx context.Context, namespace, name string) (*rackv1alpha1.MacNodeLease, error) {
			return leases(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		deleteLease: func(ctx context.Context, lease *rackv1alpha1.MacNodeLease) error {
			background := metav1.DeletePropagationBackground
			// The resourceVersion guards against a change of expireAfter: a deletion cannot be
			// undone.
			return leases(lease.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{
				Preconditions:     &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion},
				PropagationPolicy: &background,
			})
		},
		updateState: updateState,
		release: func(ctx context.Context, lease *rackv1alpha1.MacNodeLease, nodeTaints []string) error {
			_, err := leases(lease.Namespace).Release(ctx, lease.Name, &rackv1alpha1.MacNodeLeaseRelease{ObjectMeta: metav1.ObjectMeta{UID: lease.UID}, NodeTaints: nodeTaints}, created)
			return err
		},
		released: func(lease *rackv1alpha1.MacNodeLease) {
			deps.Recorder.Eventf(lease, corev1.EventTypeNormal, eventReleased, "Mac %s emptied, scrubbed and released", lease.Status.SerialNumber)
		},
		expired: func(lease *rackv1alpha1.MacNodeLease) {
			deps.Recorder.Eventf(lease, corev1.EventTypeNormal, eventExpired, "deleted %s after the lease was bound, as spec.expireAfter demands", lease.Spec.ExpireAfter)
		},
	}).reconcile)

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
