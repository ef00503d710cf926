package macosinstance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// An instance that is restored again gets another pod than after the first restore: the first pod
// may still be terminating, and the agent would stop the virtual machine with it.
func TestRestoredPodName(t *testing.T) {
	first := anInstance()
	restored := metav1.Condition{Type: instancev1alpha1.MacOSInstanceScheduledCondition, Reason: instancev1alpha1.ReasonRestored, LastTransitionTime: metav1.Now()}
	first.Status.Conditions = []metav1.Condition{restored}
	again := first.DeepCopy()
	assert.Equal(t, restoredPodName(first), restoredPodName(again), "the name of one restore stays the same")
	again.Status.Conditions[0].LastTransitionTime = metav1.NewTime(restored.LastTransitionTime.Add(time.Minute))
	names := map[string]bool{PodName(first.Name): true, restoredPodName(first): true, restoredPodName(again): true}
	assert.Len(t, names, 3)
}
