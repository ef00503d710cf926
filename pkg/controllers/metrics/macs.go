package metrics

import (
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/rules"
)

var macPhases = []string{
	string(rackv1alpha1.MacNodePending),
	string(rackv1alpha1.MacNodeAvailable),
	string(rackv1alpha1.MacNodeLeased),
	string(rackv1alpha1.MacNodeReleasing),
	string(rackv1alpha1.MacNodeOffline),
	string(rackv1alpha1.MacNodeMaintenance),
	string(rackv1alpha1.MacNodeQuarantined),
}

var quarantineReasons = []string{
	rackv1alpha1.ReasonKernelQuotaStuck,
	rackv1alpha1.ReasonCannotReattach,
	rackv1alpha1.ReasonSerialMismatch,
	rackv1alpha1.ReasonScrubFailed,
	rackv1alpha1.ReasonScrubAsserted,
	rackv1alpha1.ReasonUnknownInstance,
	rackv1alpha1.ReasonKeychainLocked,
	rackv1alpha1.ReasonNoLoginSession,
	rackv1alpha1.ReasonLedgerBehind,
	rackv1alpha1.ReasonLedgerForked,
}

// States of slots.
const (
	slotRunning  = "Running"
	slotReserved = "Reserved"
	slotFree     = "Free"
	slotUnleased = "Unleased"
)

var slotStates = []string{slotRunning, slotReserved, slotFree, slotUnleased}

// leasesByMac returns a function that returns the lease of a Mac, or nil.
func leasesByMac(leases []*rackv1alpha1.MacNodeLease) func(*rackv1alpha1.MacNode) *rackv1alpha1.MacNodeLease {
	byUID := make(map[types.UID]*rackv1alpha1.MacNodeLease, len(leases))
	for _, lease := range leases {
		byUID[lease.UID] = lease
	}
	return func(mac *rackv1alpha1.MacNode) *rackv1alpha1.MacNodeLease {
		if mac.Status.LeaseRef == nil {
			return nil
		}
		return byUID[mac.Status.LeaseRef.UID]
	}
}

// collectMacs counts the Macs and their slots.
func (f *fleet) collectMacs(send sender) {
	byPhase, bySlot, leased := count{}, count{}, map[string]int{}
	for _, mac := range f.macs {
		class, phase := mac.Spec.ClassName, mac.Status.Phase
		if phase == "" {
			phase = rackv1alpha1.MacNodePending
		}
		byPhase[[2]string{class, string(phase)}]++
		if mac.Status.LeaseRef != nil {
			leased[class]++
		}
		for state, n := range f.slotsOf(mac) {
			bySlot[[2]string{class, state}] += n
		}
	}
	byPhase.send(send, macs, f.classes, macPhases)
	bySlot.send(send, slots, f.classes, slotStates)
	for _, class := range f.classes {
		send.gauge(macsLeased, float64(leased[class]), class)
	}
}

// slotsOf returns the number of slots of a Mac in each state.
func (f *fleet) slotsOf(mac *rackv1alpha1.MacNode) map[string]int {
	taken, rest := 0, slotUnleased
	if mac.Status.LeaseRef != nil {
		rest = slotFree
	}
	if lease := f.leaseOf(mac); lease != nil {
		taken = len(lease.Status.Instances)
	}
	running := min(int(mac.Status.RunningVMs), rules.MaxVMsPerMac)
	reserved := min(max(taken-running, 0), rules.MaxVMsPerMac-running)
	return map[string]int{
		slotRunning:  running,
		slotReserved: reserved,
		rest:         rules.MaxVMsPerMac - running - reserved,
	}
}

// collectMac sends the metrics of one Mac.
func (f *fleet) collectMac(send sender, mac *rackv1alpha1.MacNode) {
	var macOS, agent string
	if hardware := mac.Status.Hardware; hardware != nil {
		macOS, agent = hardware.MacOSVersion, hardware.AgentVersion
		send.gauge(macStorageFree, float64(hardware.FreeStorage.Int64()), mac.Name)
		send.gauge(macStorageSize, float64(hardware.Storage.Int64()), mac.Name)
	}
	send.gauge(macInfo, 1, mac.Name, mac.Spec.ClassName, mac.Spec.Location.Site, mac.Spec.Location.Rack, macOS, agent)
	if q := mac.Status.Quarantine; q != nil {
		send.time(macQuarantine, q.Since.Time, mac.Name, known(quarantineReasons, q.Reason))
	}
	if l := mac.Status.Ledger; l != nil && l.Unconfirmed {
		send.gauge(macUnconfirmed, 1, mac.Name)
	}
	if since := mac.Status.ReleasingSince; since != nil {
		send.time(macReleasing, since.Time, mac.Name)
	}
	lease := f.leaseOf(mac)
	if lease == nil {
		return
	}
	if floor := predicates.Floor(lease); !floor.IsZero() {
		send.time(macFloor, floor, mac.Name)
	}
	if lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld && lease.Status.HeldAt != nil {
		send.time(macHeld, lease.Status.HeldAt.Time, mac.Name)
	}
}
