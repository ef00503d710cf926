package metrics

import "k8s.io/component-base/metrics"

// Labels. Their values are bounded: classes and Macs are registered by operators, and phases and
// reasons are fixed sets. Tenants choose the names of leases and instances, so no metric has these
// as labels.
const (
	labelClass  = "class"
	labelNode   = "node"
	labelPhase  = "phase"
	labelReason = "reason"
	labelState  = "state"
)

func describe(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc("macrack_"+name, help, labels, nil, metrics.ALPHA, "")
}

// Metrics of the fleet.
var (
	macs = describe("macs",
		"Number of Macs, by class and phase.", labelClass, labelPhase)
	macsLeased = describe("macs_leased",
		"Number of Macs that belong to a lease, in any phase, by class.", labelClass)
	slots = describe("slots",
		"Number of slots, two for each Mac, by class and state: Running, Reserved, Free or Unleased. Reserved: an instance has the slot and does not run. Free: the Mac is leased.", labelClass, labelState)
	leases = describe("leases",
		"Number of leases, by class and phase. The class is empty if it does not exist.", labelClass, labelPhase)
	leasesPending = describe("leases_pending",
		"Number of leases without a Mac, by class and the reason of their condition Bound; NotReported before the first reason.", labelClass, labelReason)
	leasePendingOldest = describe("lease_pending_oldest_timestamp_seconds",
		"Creation time of the oldest lease without a Mac, by class and reason.", labelClass, labelReason)
	instances = describe("instances",
		"Number of instances, by phase.", labelPhase)
	instancesWaiting = describe("instances_waiting",
		"Number of instances that do not run yet, by the reason for the wait.", labelReason)
	instanceWaitingOldest = describe("instance_waiting_oldest_timestamp_seconds",
		"Creation time of the oldest instance that does not run yet, by the reason for the wait.", labelReason)
)

// Metrics of each Mac.
var (
	macInfo = describe("mac_info",
		"Class, location and software of a Mac; always 1.", labelNode, labelClass, "site", "rack", "macos_version", "agent_version")
	macHeartbeat = describe("mac_heartbeat_timestamp_seconds",
		"Time of the last heartbeat of a Mac by the clock of macrack-controllers. A heartbeat from before the start of the process has the time that the Mac has written.", labelNode)
	macStorageFree = describe("mac_storage_free_bytes",
		"Free storage that the agent of a Mac has reported, rounded down to whole GiB.", labelNode)
	macStorageSize = describe("mac_storage_size_bytes",
		"Size of the disk of a Mac.", labelNode)
	macFloor = describe("mac_floor_timestamp_seconds",
		"Floor of the lease of a Mac: the earliest time of its release.", labelNode)
	macHeld = describe("mac_held_timestamp_seconds",
		"Time at which the lease of a Mac became Held, while it is Held.", labelNode)
	macReleasing = describe("mac_releasing_timestamp_seconds",
		"Time at which the release of a Mac began, while it lasts.", labelNode)
	macQuarantine = describe("mac_quarantine_timestamp_seconds",
		"Time at which the quarantine of a Mac began, while it lasts, by reason; Other for a reason that an administrator has written.", labelNode, labelReason)
	macUnconfirmed = describe("mac_unconfirmed",
		"1 for a Mac that is not leased until its agent has reported the records that it has seen. That is so after a restore of etcd.", labelNode)
)

var descriptors = []*metrics.Desc{
	macs, macsLeased, slots, leases, leasesPending, leasePendingOldest, instances, instancesWaiting, instanceWaitingOldest,
	macInfo, macHeartbeat, macStorageFree, macStorageSize, macFloor, macHeld, macReleasing, macQuarantine,
	macUnconfirmed,
}
