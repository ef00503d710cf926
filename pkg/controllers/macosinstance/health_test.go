package macosinstance

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// guestReady sets the condition of a guest that answers.
func guestReady(i *instancev1alpha1.MacOSInstance) {
	i.Status.Conditions = append(i.Status.Conditions, metav1.Condition{
		Type: instancev1alpha1.MacOSInstanceGuestReady, Status: metav1.ConditionTrue, Reason: "GuestAgentAnswers", LastTransitionTime: noon,
	})
}

func quarantinedMac() *rackv1alpha1.MacNode {
	mac := aMac(metav1.ConditionTrue)
	mac.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck"}
	return mac
}

func TestMacReady(t *testing.T) {
	for _, tt := range []scenario{
		{
			name: "running: the Mac is offline", instance: anInstance(inPhase("Running"), withMachine), mac: aMac(metav1.ConditionFalse),
			calls: []string{"status Running - False Offline"},
		},
		{
			name: "running: the guest of an offline Mac is unknown", instance: anInstance(inPhase("Running"), withMachine, guestReady), mac: aMac(metav1.ConditionFalse),
			calls: []string{"status Running - False Offline"}, guest: "Unknown Offline",
		},
		{
			name: "running: the agent is back before the heartbeat is", instance: anInstance(inPhase("Running"), withMachine, guestReady, reported(aMac(metav1.ConditionFalse))),
			mac: aMac(metav1.ConditionFalse),
		},
		{
			name: "running: the Mac is in quarantine", instance: anInstance(inPhase("Running"), withMachine, guestReady), mac: quarantinedMac(),
			calls: []string{"status Running - False KernelQuotaStuck"}, guest: "True GuestAgentAnswers",
		},
		{name: "running: the Mac is offline, which is already reported", instance: anInstance(inPhase("Running"), withMachine, reported(aMac(metav1.ConditionFalse))), mac: aMac(metav1.ConditionFalse)},
		{
			name: "stopping: the Mac is back", instance: anInstance(stopAsked, withMachine, reported(aMac(metav1.ConditionFalse))), mac: aMac(metav1.ConditionTrue),
			calls: []string{"status Stopping - True Ready"},
		},
		{name: "ended: the next tenant has the Mac", instance: anInstance(inPhase("Stopped"), withMachine), mac: aMac(metav1.ConditionFalse)},
	} {
		t.Run(tt.name, tt.run)
	}
}
