package macosinstance

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMacReady(t *testing.T) {
	for _, tt := range []scenario{
		{
			name: "running: the Mac is offline", instance: anInstance(inPhase("Running"), withMachine), mac: aMac(metav1.ConditionFalse),
			calls: []string{"status Running - False Offline"},
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
