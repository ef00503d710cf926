package node

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestStatusesOfPodsArePatched(t *testing.T) {
	now := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one-vm", UID: "uid", Labels: map[string]string{"team": "ios"}, Finalizers: []string{"example.com/x"}},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending, Message: "Pulling",
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "Pulling"}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "macos-vm", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Pulling"}}}},
		},
	}
	client := fake.NewClientset(now)
	lister := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods()
	require.NoError(t, lister.Informer().GetIndexer().Add(now))
	seen := now.DeepCopy() // before others wrote to it
	seen.Labels, seen.Finalizers = nil, nil
	seen.Status = corev1.PodStatus{
		Phase:             corev1.PodRunning,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "macos-vm", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	_, err := statusPatcher{client.CoreV1(), lister.Lister()}.Pods("acme").UpdateStatus(t.Context(), seen, metav1.UpdateOptions{})
	require.NoError(t, err)
	pod, err := client.CoreV1().Pods("acme").Get(t.Context(), "one-vm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, now.Labels, pod.Labels)
	assert.Equal(t, now.Finalizers, pod.Finalizers)
	assert.Equal(t, corev1.PodRunning, pod.Status.Phase)
	assert.Empty(t, pod.Status.Message)
	require.Len(t, pod.Status.ContainerStatuses, 1)
	assert.Nil(t, pod.Status.ContainerStatuses[0].State.Waiting)
	assert.NotNil(t, pod.Status.ContainerStatuses[0].State.Running)
	conditions := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range pod.Status.Conditions {
		conditions[c.Type] = c
	}
	assert.Equal(t, corev1.ConditionTrue, conditions[corev1.PodReady].Status)
	assert.Empty(t, conditions[corev1.PodReady].Reason)
	assert.Equal(t, "EvictionByEvictionAPI", conditions[corev1.DisruptionTarget].Reason)
}
