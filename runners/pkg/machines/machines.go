// Package machines decides when the virtual machines of a set are created and deleted. It does no
// I/O, reads no clock and keeps no state.
//
// A machine boots, waits for a job, runs one job, and is deleted. Nothing is reused between jobs.
// Each free slot of a lease takes a new machine, because its hours are paid.
package machines

import "time"

// State is the state of a machine.
type State string

const (
	// Booting means that the guest is not ready yet.
	Booting State = "Booting"
	// Warm means that the guest is ready and has no job.
	Warm State = "Warm"
	// Busy means that the machine has a job.
	Busy State = "Busy"
	// Done means that the job has ended, or that the virtual machine has.
	Done State = "Done"
	// Deleting means that the instance was deleted. It has its slot until the machine has stopped.
	Deleting State = "Deleting"
)

// Machine is the observed state of a machine.
type Machine struct {
	// Name is the name of the instance, and Lease that of its lease.
	Name, Lease string
	State       State
	// CreatedAt is the time of the creation of the instance.
	CreatedAt time.Time
	// BusySince is the time at which the machine got its job.
	BusySince time.Time
	// SilentSince is the time since which a running guest has not answered; zero if it has, or if
	// the virtual machine has not started.
	SilentSince time.Time
	// Stalled is the reason for which a booting machine cannot start without intervention, such as
	// ImageNotFound; otherwise empty.
	Stalled string
	// Outdated is true if the set creates its machines with other settings now, such as another
	// image.
	Outdated bool
}

// Settings are the settings of a set.
type Settings struct {
	// PerLease is the number of machines on a lease.
	PerLease int
	// MaxAge is the age at which a warm machine is replaced.
	MaxAge time.Duration
	// Timeout is the time after which a job is ended.
	Timeout time.Duration
	// BootTimeout is the time after which a machine without a job whose guest does not answer is
	// replaced.
	BootTimeout time.Duration
}

// Action is the action that a decision asks for.
type Action string

const (
	// Create creates a machine on a lease.
	Create Action = "Create"
	// Delete deletes a machine.
	Delete Action = "Delete"
)

// Reason is the reason for a decision, as a single CamelCase word.
type Reason string

const (
	// FreeSlot: the lease has a free slot.
	FreeSlot Reason = "FreeSlot"
	// Ended: the job has ended, or the virtual machine has.
	Ended Reason = "Ended"
	// TimedOut: the job has run for Timeout.
	TimedOut Reason = "TimedOut"
	// TooOld: the machine has waited for MaxAge.
	TooOld Reason = "TooOld"
	// GuestSilent: the guest has not answered for BootTimeout.
	GuestSilent Reason = "GuestSilent"
	// Outdated: the set has another image or other settings now.
	Outdated Reason = "Outdated"
)

// Decision is an action with its reason.
type Decision struct {
	Action Action
	Reason Reason
	// Lease is the name of the lease.
	Lease string
	// Machine is the name of the machine to delete.
	Machine string
}

// Decide returns the machines to delete and to create on the given leases, which are bound, online
// and kept.
func Decide(now time.Time, settings Settings, leases []string, machines []Machine) []Decision {
	var decisions []Decision
	onLease := map[string][]Machine{}
	for _, m := range machines {
		onLease[m.Lease] = append(onLease[m.Lease], m)
		if reason := endReason(now, settings, m); reason != "" {
			decisions = append(decisions, Decision{Delete, reason, m.Lease, m.Name})
		}
	}
	for _, lease := range leases {
		machines := onLease[lease]
		if m, reason := replaceable(now, settings, machines); reason != "" {
			decisions = append(decisions, Decision{Delete, reason, lease, m.Name})
		}
		for range settings.PerLease - len(machines) {
			decisions = append(decisions, Decision{Action: Create, Reason: FreeSlot, Lease: lease})
		}
	}
	return decisions
}

// endReason returns the reason to delete a machine that can take no job anymore, or "".
func endReason(now time.Time, settings Settings, m Machine) Reason {
	switch {
	case m.State == Done:
		return Ended
	case m.State == Busy && now.Sub(m.BusySince) >= settings.Timeout:
		return TimedOut
	case m.State == Booting && !m.SilentSince.IsZero() && now.Sub(m.SilentSince) >= settings.BootTimeout:
		return GuestSilent
	case m.State == Booting && m.Outdated:
		return Outdated // it may wait for an image that does not exist
	}
	return ""
}

// replaceable returns a warm machine to replace, and the reason. While another machine of the lease
// boots or stops, it returns no reason: new settings must not take all warm machines at once.
func replaceable(now time.Time, settings Settings, machines []Machine) (Machine, Reason) {
	for _, m := range machines {
		if m.State == Booting || m.State == Deleting || endReason(now, settings, m) != "" {
			return Machine{}, ""
		}
	}
	for _, m := range machines {
		switch {
		case m.State != Warm:
		case m.Outdated:
			return m, Outdated
		case now.Sub(m.CreatedAt) >= settings.MaxAge:
			return m, TooOld
		}
	}
	return Machine{}, ""
}
