package node

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

func TestOnlyWarningsAboutPodsAreEvents(t *testing.T) {
	fake := record.NewFakeRecorder(3)
	recorder := podRecorder{fake}
	recorder.Event(&corev1.Pod{}, corev1.EventTypeNormal, "ProviderUpdateSuccess", "Update pod in provider successfully")
	recorder.Event(&corev1.Pod{}, corev1.EventTypeNormal, "ProviderCreateSuccess", "Create pod in provider successfully")
	recorder.Event(&corev1.Pod{}, corev1.EventTypeWarning, "ProviderCreateFailed", "the agent is ending")
	assert.Equal(t, "Warning ProviderCreateFailed the agent is ending", <-fake.Events)
	assert.Empty(t, fake.Events)
}
