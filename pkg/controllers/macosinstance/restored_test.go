package macosinstance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An instance that is restored again gets another pod than after the first restore: the first pod
// may still be terminating, and the agent would stop the virtual machine with it.
func TestRestoredPodName(t *testing.T) {
	first := anInstance()
	first.CreationTimestamp = metav1.NewTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	again := first.DeepCopy()
	assert.Equal(t, restoredPodName(first), restoredPodName(again), "the name of one restore stays the same")
	again.CreationTimestamp = metav1.NewTime(first.CreationTimestamp.Add(time.Minute))
	names := map[string]bool{PodName(first.Name): true, restoredPodName(first): true, restoredPodName(again): true}
	assert.Len(t, names, 3)
}
