package rules

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of a pending release.
const (
	// ReasonNotReleasing: the lease was not deleted, or its floor has not passed.
	ReasonNotReleasing = "NotReleasing"
	// ReasonStoppingInstances: instances of the lease have not stopped.
	ReasonStoppingInstances = "StoppingInstances"
	// ReasonScrubbing: the agent has not reported the Mac as scrubbed of the lease.
	ReasonScrubbing = "Scrubbing"
	// ReasonTaintingNode: the Node of the Mac still admits the tenant, or does not have the taint
	// of an unleased Mac.
	ReasonTaintingNode = "TaintingNode"
)

// ScrubFacts are the facts that decide whether all data of a lease is removed from a Mac.
type ScrubFacts struct {
	// Releasing: the lease has ended and the agent has been instructed to erase its data.
	Releasing bool
	// RunningVMs is the number of virtual machines that count as running on the Mac.
	RunningVMs int32
	// LeaseUID is the UID of the lease.
	LeaseUID types.UID
	// ReportedLease is the lease in the agent's scrub report; empty without a report.
	ReportedLease types.UID
	// Scrubbed: the condition Scrubbed of the Mac is True.
	Scrubbed bool
	// Remaining are the files that the scrub could not remove.
	Remaining []string
}

// Scrubbed reports whether the agent has proved that no data of the lease is left on the Mac.
func Scrubbed(f ScrubFacts) bool {
	return f.Releasing && f.RunningVMs == 0 && f.LeaseUID != "" && f.ReportedLease == f.LeaseUID && f.Scrubbed && len(f.Remaining) == 0
}

// ReleaseFacts are the facts that decide whether a lease may release its Mac after the floor.
type ReleaseFacts struct {
	// Releasing: the lease is deleted and its phase is Releasing.
	Releasing bool
	// Phase is the phase of the lease.
	Phase string
	// Instances are the names of the instances that have a slot of the lease.
	Instances []string
	// SerialNumber is that of the Mac.
	SerialNumber string
	Scrub        ScrubFacts
	// Node is the name of the Mac's Node, and Taints are its taints.
	Node   string
	Taints []corev1.Taint
}

// BlocksRelease returns the reason and the message of a pending release after the floor. Both are
// empty if the Mac may be released.
func BlocksRelease(f ReleaseFacts) (reason, message string) {
	switch {
	case !f.Releasing:
		return ReasonNotReleasing, fmt.Sprintf("the lease is %s and must be deleted and Releasing", f.Phase)
	case len(f.Instances) > 0:
		return ReasonStoppingInstances, "waiting for instances to stop: " + strings.Join(f.Instances, ", ")
	case !Scrubbed(f.Scrub):
		return ReasonScrubbing, fmt.Sprintf("waiting for Mac %s to report a complete scrub", f.SerialNumber)
	case !HasOnlyTaint(f.Taints, UnleasedTaint()):
		return ReasonTaintingNode, fmt.Sprintf("waiting for Node %s to be tainted %s, so that nothing is scheduled there", f.Node, TaintUnleased)
	}
	return "", ""
}
