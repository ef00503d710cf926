package pods

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// A start costs no report that says no more than the scheduler has said.
func TestIsNew(t *testing.T) {
	reported := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "macos-vm"}}}
	environment := func(reason string) []metav1.Condition {
		return []metav1.Condition{{Type: instancev1alpha1.MacOSInstanceEnvironmentReady, Status: metav1.ConditionFalse, Reason: reason}}
	}
	for name, tt := range map[string]struct {
		instance instancev1alpha1.MacOSInstanceStatus
		pod      corev1.PodStatus
		want     bool
	}{
		"just bound, before the controllers have seen it": {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstancePending}, want: true},
		"just bound": {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceScheduled}, want: true},
		"just bound, with the message of the controllers": {
			instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstancePending, Message: "waiting for the scheduler", Conditions: []metav1.Condition{
				{Type: instancev1alpha1.MacOSInstanceScheduledCondition, Status: metav1.ConditionFalse, Message: "waiting for the scheduler"},
			}}, want: true,
		},
		"it waits":           {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceScheduled, Message: "MacNode mac-1 is quarantined"}},
		"its Secret is gone": {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceScheduled, Conditions: environment("SecretNotFound")}},
		"its environment is being read": {
			instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceScheduled, Conditions: environment(instancev1alpha1.ReasonEnvironmentPending)}, want: true,
		},
		"it starts":           {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceStarting}},
		"it no longer waits":  {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceScheduled}, pod: reported},
		"it has been stopped": {instance: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceStopped}},
	} {
		assert.Equal(t, tt.want, isNew(&instancev1alpha1.MacOSInstance{Status: tt.instance}, &corev1.Pod{Status: tt.pod}), name)
	}
}
