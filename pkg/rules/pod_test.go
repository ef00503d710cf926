package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDescribeDeletion(t *testing.T) {
	at, grace := metav1.NewTime(time.Date(2026, 8, 1, 12, 1, 0, 0, time.UTC)), int64(60)
	pod := func(conditions ...corev1.PodCondition) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "one-vm", DeletionTimestamp: &at, DeletionGracePeriodSeconds: &grace},
			Status:     corev1.PodStatus{Conditions: conditions},
		}
	}
	target := func(status corev1.ConditionStatus, reason string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.DisruptionTarget, Status: status, Reason: reason, Message: "why"}
	}
	const names = "; the audit log of kube-apiserver names the user"
	for want, got := range map[string]*corev1.Pod{
		"the placeholder pod one-vm was deleted at 2026-08-01T12:00:00Z by a user or controller of the cluster" + names:                            pod(),
		"the placeholder pod one-vm was deleted at 2026-08-01T12:00:00Z by an eviction, as kubectl drain asks for (why)" + names:                   pod(target("True", "EvictionByEvictionAPI")),
		"the placeholder pod one-vm was deleted at 2026-08-01T12:00:00Z by kube-scheduler, for a pod of a higher priority (why)" + names:           pod(target("True", "PreemptionByScheduler")),
		"the placeholder pod one-vm was deleted at 2026-08-01T12:00:00Z by kube-controller-manager, because of a taint of the Node (why)" + names:  pod(target("True", "DeletionByTaintManager")),
		"the placeholder pod one-vm was deleted at 2026-08-01T12:00:00Z by kube-controller-manager, because the Node does not exist (why)" + names: pod(target("True", "DeletionByPodGC")),
		"the placeholder pod one-vm was deleted at 2026-08-01T12:00:00Z because of Other (why)" + names:                                            pod(target("True", "Other")),
	} {
		assert.Equal(t, want, DescribeDeletion(got))
	}
	assert.Contains(t, DescribeDeletion(pod(target("False", "EvictionByEvictionAPI"))), "by a user or controller")
	assert.Equal(t, "the placeholder pod one-vm was deleted by a user or controller of the cluster"+names, DescribeLoss("one-vm"))
}
