package macosinstance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/registry/conditions/conditionstest"
)

func condition(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message, ObservedGeneration: 1}
}

var (
	offline     = condition("MacReady", metav1.ConditionFalse, "Offline", "away")
	quarantined = condition("MacReady", metav1.ConditionFalse, "KernelQuotaStuck", "stuck")
	online      = condition("MacReady", metav1.ConditionTrue, "Ready", "fine")
)

// Of the conditions that the case has, all stay as they are; want are the others.
func TestDeriveConditions(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	image := func(reason string) metav1.Condition {
		return condition("ImageReady", metav1.ConditionFalse, reason, "no image")
	}
	environment := func(reason string) metav1.Condition {
		return condition("EnvironmentReady", metav1.ConditionFalse, reason, "no value")
	}
	guest := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return condition("GuestReady", status, reason, "as the agent says")
	}
	type list = []metav1.Condition
	const runs, answers = "the virtual machine runs", "the virtual machine runs, and its guest agent answers"
	for _, tt := range []struct {
		name       string
		phase      instance.MacOSInstancePhase
		conditions list
		want       []string
		kstatus    string
	}{
		{"new", "Pending", nil, []string{"Ready=False Pending: why", "Reconciling=True Pending: why"}, "InProgress"},
		{"new, without a phase", "", nil, []string{"Ready=False Pending: why", "Reconciling=True Pending: why"}, "InProgress"},
		{"waits for its pod", "Pending", list{condition("Scheduled", metav1.ConditionFalse, "PodRefused", "quota")}, []string{"Ready=False Pending: why", "Reconciling=True Pending: why"}, "InProgress"},
		{"scheduled", "Scheduled", list{online}, []string{"Ready=False Scheduled: why", "Reconciling=True Scheduled: why"}, "InProgress"},
		{"pulls", "Pulling", list{image("Pulling")}, []string{"Ready=False Pulling: why", "Reconciling=True Pulling: why"}, "InProgress"},
		{"the pull failed, and may do next time", "Pulling", list{image("PullFailed")}, []string{"Ready=False Pulling: why", "Reconciling=True Pulling: why"}, "InProgress"},
		{"no such image in the registry", "Pulling", list{image("ImageNotFound")}, []string{"Ready=False ImageNotFound: no image", "Stalled=True ImageNotFound: no image"}, "Failed"},
		{"wrong credentials", "Pulling", list{image("PullUnauthorized")}, []string{"Ready=False PullUnauthorized: no image", "Stalled=True PullUnauthorized: no image"}, "Failed"},
		{"the disk is full", "Pulling", list{image("InsufficientStorage")}, []string{"Ready=False InsufficientStorage: no image", "Stalled=True InsufficientStorage: no image"}, "Failed"},
		{"no such Secret", "Scheduled", list{environment("SecretNotFound")}, []string{"Ready=False SecretNotFound: no value", "Stalled=True SecretNotFound: no value"}, "Failed"},
		{"the environment is too large", "Scheduled", list{environment("EnvironmentInvalid")}, []string{"Ready=False EnvironmentInvalid: no value", "Stalled=True EnvironmentInvalid: no value"}, "Failed"},
		{"the Secret cannot be read, and may be next time", "Scheduled", list{environment("EnvironmentUnreadable")}, []string{"Ready=False Scheduled: why", "Reconciling=True Scheduled: why"}, "InProgress"},
		{"has not sent the environment", "Starting", list{environment("EnvironmentPending")}, []string{"Ready=False Starting: why", "Reconciling=True Starting: why"}, "InProgress"},
		{"pulls again", "Pulling", list{image("Pulling"), condition("Stalled", metav1.ConditionTrue, "ImageNotFound", "before")}, []string{"Ready=False Pulling: why", "Reconciling=True Pulling: why"}, "InProgress"},
		{"pulls while the Mac is away", "Pulling", list{image("Pulling"), offline}, []string{"Ready=False Offline: away", "Reconciling=True Offline: away"}, "InProgress"},
		{"the Mac is in quarantine", "Scheduled", list{quarantined}, []string{"Ready=False KernelQuotaStuck: stuck", "Stalled=True KernelQuotaStuck: stuck"}, "Failed"},
		{"starts", "Starting", list{online}, []string{"Ready=False Starting: why", "Reconciling=True Starting: why"}, "InProgress"},

		{"runs, and its guest boots", "Running", list{guest("False", "GuestBoots")}, []string{"Ready=False GuestBoots: as the agent says", "Reconciling=True GuestBoots: as the agent says"}, "InProgress"},
		{"runs, and its guest answers", "Running", list{guest("True", "GuestAgentAnswers"), online}, []string{"Ready=True GuestAgentAnswers: " + answers}, "Current"},
		{"runs, without a guest agent", "Running", list{online}, []string{"Ready=True Running: " + runs}, "Current"},
		{"runs, and its guest is silent", "Running", list{guest("False", "GuestSilent")}, []string{"Ready=False GuestSilent: as the agent says", "Reconciling=True GuestSilent: as the agent says"}, "InProgress"},
		{"runs in quarantine", "Running", list{guest("True", "GuestAgentAnswers"), quarantined}, []string{"Ready=True GuestAgentAnswers: " + answers}, "Current"},
		{"runs, on an offline Mac", "Running", list{guest("True", "GuestAgentAnswers"), offline}, []string{"Ready=Unknown Offline: away", "Reconciling=True Offline: away"}, "InProgress"},

		{"stops", "Stopping", list{guest("True", "GuestAgentAnswers"), condition("Ready", metav1.ConditionTrue, "GuestAgentAnswers", "before")}, []string{"Ready=False Stopping: why", "Reconciling=True Stopping: why"}, "InProgress"},
		{"stopped", "Stopped", list{condition("Reconciling", metav1.ConditionTrue, "Stopping", "before")}, []string{"Ready=False Stopped: why", "Stalled=True Stopped: why"}, "Failed"},
		{"failed", "Failed", list{image("Pulling")}, []string{"Ready=False Failed: why", "Stalled=True Failed: why"}, "Failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := &instance.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Name: "a", Generation: 2}, Status: instance.MacOSInstanceStatus{Phase: tt.phase, Conditions: append(list{}, tt.conditions...)}}
			if tt.phase != "Running" {
				i.Status.Message = "why"
			}
			DeriveConditions(i, noon)
			var derived list
			for _, c := range i.Status.Conditions {
				assert.EqualValues(t, 2, c.ObservedGeneration, c.Type)
				switch c.Type {
				case "Ready", "Reconciling", "Stalled":
					derived = append(derived, c)
				}
			}
			assert.Equal(t, tt.want, conditionstest.Lines(derived))
			assert.Equal(t, tt.kstatus, conditionstest.KStatus(t, i.ObjectMeta, i.Status.Conditions))

			again := i.DeepCopy()
			DeriveConditions(again, noon.Add(time.Hour))
			assert.Equal(t, i, again, "what has not changed is not written again")
		})
	}
}

// The condition Ready shows that the deadline ended an instance, whatever its message.
func TestDeadlineExceeded(t *testing.T) {
	ended := func(seconds *int64, reason string) string {
		i := &instance.MacOSInstance{Spec: instance.MacOSInstanceSpec{ActiveDeadlineSeconds: seconds}, Status: instance.MacOSInstanceStatus{
			Phase: instance.MacOSInstanceFailed, StopRequest: &instance.StopRequest{Reason: reason},
		}}
		return summarize(i).Reason
	}
	assert.Equal(t, "DeadlineExceeded", ended(ptr.To[int64](60), "DeadlineExceeded"))
	assert.Equal(t, "Failed", ended(ptr.To[int64](60), "Asked"))
	assert.Equal(t, "Failed", ended(nil, "DeadlineExceeded"))
}

// An instance that is to stop says so while its Mac, which has to do it, is away.
func TestStopMessage(t *testing.T) {
	for _, tt := range []struct {
		name       string
		conditions []metav1.Condition
		want       string
	}{
		{"before the Mac was known", nil, "stop requested by acme (Deleted)"},
		{"online", []metav1.Condition{online}, "stop requested by acme (Deleted)"},
		{"in quarantine", []metav1.Condition{quarantined}, "stop requested by acme (Deleted)"},
		{"offline", []metav1.Condition{offline}, "stop requested by acme (Deleted); it stops when its Mac is online again: away"},
	} {
		i := &instance.MacOSInstance{Status: instance.MacOSInstanceStatus{Phase: "Running", Conditions: tt.conditions}}
		requestStop(i, instance.StopRequest{By: "acme", Reason: "Deleted"})
		assert.Equal(t, tt.want, i.Status.Message, tt.name)
	}
}
