package metrics

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

func TestWaitingReasonOfTheEnvironment(t *testing.T) {
	condition := func(name, reason string) metav1.Condition {
		return metav1.Condition{Type: name, Status: metav1.ConditionFalse, Reason: reason}
	}
	image, environment := instancev1alpha1.MacOSInstanceImageReady, instancev1alpha1.MacOSInstanceEnvironmentReady
	for _, tt := range []struct {
		want       string
		conditions []metav1.Condition
	}{
		{"Scheduled", nil},
		{"Scheduled", []metav1.Condition{condition(environment, instancev1alpha1.ReasonEnvironmentPending)}},
		{"SecretNotFound", []metav1.Condition{condition(environment, instancev1alpha1.ReasonSecretNotFound)}},
		{"Pulling", []metav1.Condition{condition(environment, instancev1alpha1.ReasonSecretNotFound), condition(image, instancev1alpha1.ReasonPulling)}},
	} {
		instance := &instancev1alpha1.MacOSInstance{Status: instancev1alpha1.MacOSInstanceStatus{
			Phase: instancev1alpha1.MacOSInstanceScheduled, Conditions: tt.conditions,
		}}
		assert.Equal(t, tt.want, waitingReason(instance))
	}
}
