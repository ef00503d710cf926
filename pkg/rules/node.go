package rules

import "fmt"

// NodeFacts are the facts that decide the phase of a Mac.
type NodeFacts struct {
	// Seen: an agent has reported for the Mac.
	Seen bool
	// Quarantined: the Mac cannot be trusted to run two virtual machines.
	Quarantined bool
	// Offline: the agent has stopped sending heartbeats.
	Offline bool
	// Leased: the Mac belongs to a lease.
	Leased bool
	// Releasing: the lease has ended and the Mac is being emptied.
	Releasing bool
	// Maintenance: an administrator keeps the Mac out of the pool.
	Maintenance bool
	// Unconfirmed: the server may have lost records that the Mac has seen.
	Unconfirmed bool
}

// macAvailable is the phase of a Mac that can be leased.
const macAvailable = "Available"

// NodePhase returns the phase of a Mac. The most important fact has precedence: a leased Mac in
// quarantine is Quarantined, although it is still leased.
func NodePhase(f NodeFacts) string {
	switch {
	case f.Quarantined:
		return "Quarantined"
	case f.Seen && f.Offline:
		return "Offline"
	case f.Leased && f.Releasing:
		return "Releasing"
	case f.Leased:
		return "Leased"
	case f.Maintenance:
		return "Maintenance"
	case !f.Seen, f.Unconfirmed:
		return "Pending"
	default:
		return macAvailable
	}
}

// HealthyMac returns the message of leases and instances whose Mac is healthy.
func HealthyMac(serialNumber string) string {
	return fmt.Sprintf("Mac %s is online and healthy", serialNumber)
}
