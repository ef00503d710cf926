package macnode

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// Reasons of Events on MacNodes; a change of the condition Ready has the reason of the condition.
const (
	eventQuarantined = "Quarantined"
	eventRecovered   = "Recovered"
)

// describe returns the Event for the start or the end of a Mac's quarantine. The reason is empty
// for other changes.
func describe(before, after *rackv1alpha1.MacNode) (eventType, reason, message string) {
	if before == nil || after == nil || before.UID != after.UID {
		return "", "", ""
	}
	oldQuarantine, newQuarantine := before.Status.Quarantine, after.Status.Quarantine
	switch {
	case newQuarantine != nil && (oldQuarantine == nil || oldQuarantine.Reason != newQuarantine.Reason):
		return corev1.EventTypeWarning, eventQuarantined,
			apiclient.Message(fmt.Sprintf("no instance starts on the Mac (%s): %s", newQuarantine.Reason, newQuarantine.Message))
	case newQuarantine == nil && oldQuarantine != nil:
		return corev1.EventTypeNormal, eventRecovered, fmt.Sprintf("quarantine ended (%s)", oldQuarantine.Reason)
	}
	return "", "", ""
}
