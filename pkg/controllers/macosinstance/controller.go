package macosinstance

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apiclient"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// New returns the controller. Its keys are instances.
func New(deps *shared.Dependencies) *controller.Controller {
	instances := deps.MacRack.InstanceV1alpha1().MacOSInstances
	created, patched := metav1.CreateOptions{FieldManager: shared.FieldManager}, metav1.PatchOptions{FieldManager: shared.FieldManager}
	r := &reconciler{
		now: deps.Clock.Now,
		getInstance: func(namespace, name string) (*instancev1alpha1.MacOSInstance, error) {
			return deps.MacOSInstances.Lister().MacOSInstances(namespace).Get(name)
		},
		getLease: deps.GetLease,
		getMac:   deps.MacNodes.Lister().Get,
		getNode:  deps.Nodes.Lister().Get,
		getImage: deps.MacOSImages.Lister().Get,
		getPod: func(namespace, name string) (*corev1.Pod, error) {
			return deps.Pods.Lister().Pods(namespace).Get(name)
		},
		readPod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return deps.Core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		createPod: func(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
			return deps.Core.CoreV1().Pods(pod.Namespace).Create(ctx, pod, created)
		},
		patchPod: func(ctx context.Context, pod *corev1.Pod, patch []byte) error {
			_, err := deps.Core.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: shared.FieldManager})
			return err
		},
		getBudget: func(namespace, name string) (*policyv1.PodDisruptionBudget, error) {
			return deps.Budgets.Lister().PodDisruptionBudgets(namespace).Get(name)
		},
		createBudget: func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
			_, err := deps.Core.PolicyV1().PodDisruptionBudgets(budget.Namespace).Create(ctx, budget, created)
			return err
		},
		deleteBudget: func(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
			return deps.Core.PolicyV1().PodDisruptionBudgets(budget.Namespace).Delete(ctx, budget.Name, metav1.DeleteOptions{})
		},
		deletePod: func(ctx context.Context, pod *corev1.Pod) error {
			return deps.Core.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		},
		update: func(ctx context.Context, before, after *instancev1alpha1.MacOSInstance) error {
			patch, err := apiclient.Patch(before, after)
			if err != nil {
				return err
			}
			_, err = instances(before.Namespace).Patch(ctx, after.Name, apiclient.PatchType, patch, patched)
			return err
		},
		updateState: func(ctx context.Context, before, after *instancev1alpha1.MacOSInstance) (*instancev1alpha1.MacOSInstance, error) {
			patch, err := apiclient.StatusPatch(before, after)
			if err != nil {
				return nil, err
			}
			return instances(before.Namespace).Patch(ctx, after.Name, apiclient.PatchType, patch, patched, "status")
		},
		record: func(ctx context.Context, record *rackv1alpha1.AuditRecord) error {
			_, err := deps.MacRack.RackV1alpha1().AuditRecords(record.Namespace).Create(ctx, record, created)
			return err
		},
	}
	c := controller.New("macosinstance", deps.Clock, r.reconcile)

	_, _ = deps.MacOSInstances.Informer().AddEventHandler(controller.Handlers(func(before, after *instancev1alpha1.MacOSInstance) {
		c.Enqueue(shared.Key(controller.Newest(before, after)))
		if eventType, reason, message := describe(before, after); reason != "" {
			deps.Recorder.Event(after, eventType, reason, message)
		}
	}))
	_, _ = deps.Pods.Informer().AddEventHandler(controller.Handlers(func(before, after *corev1.Pod) {
		pod := controller.Newest(before, after)
		if ref := metav1.GetControllerOf(pod); ref != nil && ref.Kind == "MacOSInstance" {
			c.Enqueue(pod.Namespace + "/" + ref.Name)
		}
		// The pod may have lost its owner reference.
		if instances, err := deps.InstancesOfPod(pod.Namespace, pod.Name); err == nil {
			for _, instance := range instances {
				c.Enqueue(shared.Key(instance))
			}
		}
	}))
	_, _ = deps.Budgets.Informer().AddEventHandler(controller.Handlers(func(before, after *policyv1.PodDisruptionBudget) {
		if budget := controller.Newest(before, after); budget.Labels[rules.LabelInstance] != "" {
			c.Enqueue(budget.Namespace + "/" + budget.Labels[rules.LabelInstance])
		}
	}))
	// Only instances without a virtual machine depend on their Node and lease.
	enqueueWaiting := func(list []*instancev1alpha1.MacOSInstance, err error) {
		if err != nil {
			return
		}
		for _, instance := range list {
			if instance.Status.MachineID == "" && !rules.InstanceEnded(instance.Status.Phase) {
				c.Enqueue(shared.Key(instance))
			}
		}
	}
	_, _ = deps.Nodes.Informer().AddEventHandler(controller.Handlers(func(before, after *corev1.Node) {
		if before == nil || after == nil || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
			enqueueWaiting(deps.InstancesOn(controller.Newest(before, after).Name))
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		if !healthChanged(before, after) {
			return
		}
		list, err := deps.InstancesOn(after.Name)
		if err != nil {
			return
		}
		for _, instance := range list {
			if !rules.InstanceEnded(instance.Status.Phase) {
				c.Enqueue(shared.Key(instance))
			}
		}
	}))
	_, _ = deps.MacNodeLeases.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNodeLease) {
		if before == nil || after == nil || before.Status.Phase != after.Status.Phase {
			lease := controller.Newest(before, after)
			enqueueWaiting(deps.InstancesOf(lease.Namespace, lease.Name))
		}
	}))
	return c
}
