package node

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

func TestChangesOfPodsAreNoEvents(t *testing.T) {
	fake := record.NewFakeRecorder(2)
	recorder := podRecorder{fake}
	recorder.Event(&corev1.Pod{}, corev1.EventTypeNormal, "ProviderUpdateSuccess", "Update pod in provider successfully")
	recorder.Event(&corev1.Pod{}, corev1.EventTypeNormal, "ProviderCreateSuccess", "Create pod in provider successfully")
	assert.Equal(t, "Normal ProviderCreateSuccess Create pod in provider successfully", <-fake.Events)
	assert.Empty(t, fake.Events)
}
