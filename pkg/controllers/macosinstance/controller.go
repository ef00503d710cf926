package macosinstance

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	"macrack.io/macrack/pkg/rules"
)

// New returns the controller. Its keys are instances.
func New(deps *shared.Dependencies) *controller.Controller {
	c := controller.New("macosinstance", deps.Clock, newReconciler(deps).reconcile)
	// enqueue returns a function that enqueues the selected ones of the instances that an index has
	// found.
	enqueue := func(selects func(*instancev1alpha1.MacOSInstance) bool) func([]*instancev1alpha1.MacOSInstance, error) {
		return func(found []*instancev1alpha1.MacOSInstance, err error) {
			if err != nil {
				return
			}
			for _, instance := range found {
				if selects(instance) {
					c.Enqueue(shared.Key(instance))
				}
			}
		}
	}

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
		enqueue(isAny)(deps.InstancesOfPod(pod.Namespace, pod.Name))
	}))
	_, _ = deps.Budgets.Informer().AddEventHandler(controller.Handlers(func(before, after *policyv1.PodDisruptionBudget) {
		budget := controller.Newest(before, after)
		if before != nil && after != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
			return
		}
		enqueue(isAny)(deps.InstancesOf(budget.Namespace, budget.Labels[rules.LabelLease]))
	}))
	_, _ = deps.Nodes.Informer().AddEventHandler(controller.Handlers(func(before, after *corev1.Node) {
		if before == nil || after == nil || !equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) {
			enqueue(isWaiting)(deps.InstancesOn(controller.Newest(before, after).Name))
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		if healthChanged(before, after) {
			enqueue(isLive)(deps.InstancesOn(after.Name))
		}
	}))
	_, _ = deps.MacNodeLeases.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNodeLease) {
		if before == nil || after == nil || before.Status.Phase != after.Status.Phase {
			lease := controller.Newest(before, after)
			enqueue(isWaiting)(deps.InstancesOf(lease.Namespace, lease.Name))
		}
	}))
	return c
}

func isAny(*instancev1alpha1.MacOSInstance) bool { return true }

func isLive(instance *instancev1alpha1.MacOSInstance) bool {
	return !rules.InstanceEnded(instance.Status.Phase)
}

// isWaiting reports whether the instance has no virtual machine yet. Only such instances depend on
// their Node and lease.
func isWaiting(instance *instancev1alpha1.MacOSInstance) bool {
	return instance.Status.MachineID == "" && isLive(instance)
}
