package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// statusPatcher is a client of pods that patches statuses, as kubelets do. The library updates the
// whole pod as it was when its status was computed, which would revert concurrent changes of
// labels, annotations and finalizers.
type statusPatcher struct {
	corev1client.PodsGetter
	lister corev1listers.PodLister
}

func (c statusPatcher) Pods(namespace string) corev1client.PodInterface {
	return podStatusPatcher{c.PodsGetter.Pods(namespace), c.lister.Pods(namespace)}
}

type podStatusPatcher struct {
	corev1client.PodInterface
	lister corev1listers.PodNamespaceLister
}

func (c podStatusPatcher) UpdateStatus(ctx context.Context, pod *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	old, err := c.lister.Get(pod.Name)
	if err != nil {
		return nil, err
	}
	patch, err := statusPatch(old, pod)
	if err != nil {
		return nil, err
	}
	return c.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// statusPatch returns the patch from old's status to pod's. It keeps the conditions of other
// writers, such as the reason of an eviction.
func statusPatch(old, pod *corev1.Pod) ([]byte, error) {
	status := pod.Status.DeepCopy()
	for _, condition := range old.Status.Conditions {
		if !slices.ContainsFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type }) {
			status.Conditions = append(status.Conditions, condition)
		}
	}
	before, err := json.Marshal(corev1.Pod{Status: old.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}, Status: *status})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("patch of the status of pod %s: %w", pod.Name, err)
	}
	return patch, nil
}
