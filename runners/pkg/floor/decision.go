package floor

import (
	"fmt"
	"time"
)

// Action is the action that a decision asks for.
type Action string

const (
	// Place runs a job on a lease.
	Place Action = "Place"
	// Grow creates a lease.
	Grow Action = "Grow"
	// Wait creates no lease although demand exceeds the capacity.
	Wait Action = "Wait"
	// Keep leaves a lease as it is.
	Keep Action = "Keep"
	// ReleaseAtFloor deletes a lease before its floor; its Mac is released at the floor.
	ReleaseAtFloor Action = "ReleaseAtFloor"
	// ReleaseNow deletes a lease whose Mac is released at once, or that has none.
	ReleaseNow Action = "ReleaseNow"
)

// Reason is the reason for a decision, as a single CamelCase word.
type Reason string

const (
	// FreeMachine: a booted machine is free.
	FreeMachine Reason = "FreeMachine"
	// SustainedDemand: demand has exceeded the capacity for GrowAfter.
	SustainedDemand Reason = "SustainedDemand"
	// ExpectedDemand: earlier days had more demand at this time.
	ExpectedDemand Reason = "ExpectedDemand"
	// Minimum: the set has no more leases than its minimum.
	Minimum Reason = "Minimum"
	// Maximum: the set has as many leases as its maximum.
	Maximum Reason = "Maximum"
	// QuotaExceeded: the API server refused a lease for a quota.
	QuotaExceeded Reason = "QuotaExceeded"
	// LeaseRefused: the API server refused a lease for another reason than a quota.
	LeaseRefused Reason = "LeaseRefused"
	// NoMac: a pending lease gets no Mac.
	NoMac Reason = "NoMac"
	// Paid: the floor of the lease has not passed, so its Mac is paid for.
	Paid Reason = "Paid"
	// Needed: the current demand needs the lease.
	Needed Reason = "Needed"
	// Busy: demand does not need the lease, but a job runs on it.
	Busy Reason = "Busy"
	// RecentlyUsed: a job ended on the lease less than KeepIdle ago.
	RecentlyUsed Reason = "RecentlyUsed"
	// Unknown: the source of the jobs has not reported them yet.
	Unknown Reason = "Unknown"
	// Deleted: the lease was deleted before.
	Deleted Reason = "Deleted"
	// Surplus: the lease was idle for KeepIdle, and no demand is expected that needs it.
	Surplus Reason = "Surplus"
)

// Decision is an action with its reason.
type Decision struct {
	Action Action
	Reason Reason
	// Lease is the name of the lease; empty for Grow and Wait.
	Lease string
	// Job is the name of the job of Place.
	Job string
	// Until is the time at which a kept lease can next become surplus, or at which the Mac of a
	// deleted one is released; zero if it depends on demand alone.
	Until time.Time
	// Detail is the message of the refusal, for Wait.
	Detail string
}

// reasons are the texts of the reasons.
var reasons = map[Reason]string{
	FreeMachine:     "a booted machine is free",
	SustainedDemand: "demand has exceeded the capacity for growAfter",
	ExpectedDemand:  "earlier days had more demand at this time",
	Minimum:         "the set has no more leases than its minimum",
	Maximum:         "the set has as many leases as its maximum; raise max, or wait for jobs to end",
	QuotaExceeded:   "the quota of the namespace is exhausted; raise it, or lower max",
	LeaseRefused:    "the API server refuses the lease; correct the settings or the permissions",
	NoMac:           "no Mac is available; wait, or add Macs to the class",
	Paid:            "its Mac is paid for",
	Needed:          "demand needs it",
	Busy:            "a job runs on it until it ends",
	RecentlyUsed:    "it was not idle for keepIdle",
	Unknown:         "the source of the jobs has not reported them yet",
	Deleted:         "it was deleted before",
	Surplus:         "it was idle for keepIdle, and no demand is expected that needs it",
}

// String returns the decision as a sentence for logs, events and status.
func (d Decision) String() string {
	text := string(d.Action)
	if d.Job != "" {
		text += fmt.Sprintf(" job %q", d.Job)
	}
	if d.Lease != "" {
		text += fmt.Sprintf(" lease %q", d.Lease)
	}
	if !d.Until.IsZero() {
		text += " until " + d.Until.UTC().Format(time.RFC3339)
	}
	text += ": " + reasons[d.Reason]
	if d.Detail != "" {
		text += " (" + d.Detail + ")"
	}
	return text
}
