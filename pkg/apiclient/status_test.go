package apiclient

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

func TestStatusPatch(t *testing.T) {
	seen := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "a", UID: "uid-a", ResourceVersion: "7", Finalizers: []string{"macrack.io/vm", "acme/own"}},
		Status: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceScheduled, PodName: "a-vm", Message: "waits", Startup: &instancev1alpha1.StartupResult{Output: "yes"}, Conditions: []metav1.Condition{
			{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Scheduled"},
		}},
	}
	for name, test := range map[string]struct {
		change func(*instancev1alpha1.MacOSInstance)
		want   string
	}{
		"nothing": {func(*instancev1alpha1.MacOSInstance) {}, `{"metadata":{"uid":"uid-a"}}`},
		"a phase, and no message": {func(i *instancev1alpha1.MacOSInstance) {
			i.Status.Phase, i.Status.Message = instancev1alpha1.MacOSInstancePulling, ""
		}, `{"metadata":{"uid":"uid-a"},"status":{"phase":"Pulling","message":null}}`},
		"a condition leaves the others alone": {func(i *instancev1alpha1.MacOSInstance) {
			i.Status.Conditions = append(i.Status.Conditions, metav1.Condition{Type: "GuestReady", Status: metav1.ConditionTrue, Reason: "Answers"})
		}, `{"metadata":{"uid":"uid-a"},"status":{"$setElementOrder/conditions":[{"type":"Scheduled"},{"type":"GuestReady"}],
			"conditions":[{"type":"GuestReady","status":"True","reason":"Answers","message":"","lastTransitionTime":null}]}}`},
		"a report that is new": {func(i *instancev1alpha1.MacOSInstance) {
			i.Status.IPAddress = &instancev1alpha1.IPAddress{Value: "192.168.64.2"}
		}, `{"metadata":{"uid":"uid-a"},"status":{"ipAddress":{"value":"192.168.64.2"}}}`},
		"a report that is gone": {func(i *instancev1alpha1.MacOSInstance) { i.Status.Startup = nil },
			`{"metadata":{"uid":"uid-a"},"status":{"startup":null}}`},
		"a report is replaced as a whole": {func(i *instancev1alpha1.MacOSInstance) {
			i.Status.Startup = &instancev1alpha1.StartupResult{ExitCode: 1, Output: "no"}
		}, `{"metadata":{"uid":"uid-a"},"status":{"startup":{"$patch":"replace","exitCode":1,"output":"no"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			updated := seen.DeepCopy()
			test.change(updated)
			patch, err := StatusPatch(seen, updated)
			require.NoError(t, err)
			assert.JSONEq(t, test.want, string(patch))
		})
	}
	t.Run("one finalizer", func(t *testing.T) {
		updated := seen.DeepCopy()
		updated.Finalizers = updated.Finalizers[1:]
		patch, err := Patch(seen, updated)
		require.NoError(t, err)
		assert.JSONEq(t, `{"metadata":{"uid":"uid-a","$setElementOrder/finalizers":["acme/own"],"$deleteFromPrimitiveList/finalizers":["macrack.io/vm"]}}`, string(patch))
	})
	t.Run("two versions", func(t *testing.T) {
		updated := seen.DeepCopy()
		updated.ResourceVersion = "8"
		_, err := StatusPatch(seen, updated)
		require.ErrorContains(t, err, "read twice")
	})
}
