package rules

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Phases of a lease that the rules distinguish. They are the values of the API.
const (
	leasePending   = "Pending"
	leaseBound     = "Bound"
	leaseHeld      = "Held"
	leaseReleasing = "Releasing"
)

// CheckAcceptsInstance refuses a new instance on a lease in phase, with the floor earliestRelease,
// unless the lease is Bound, or Held and before its floor.
func CheckAcceptsInstance(lease, phase string, earliestRelease, now time.Time) error {
	switch phase {
	case leaseBound:
		return nil
	case leaseHeld:
		if !FloorPassed(now, earliestRelease) {
			return nil
		}
		return refuse(TwentyFourHours, "lease %q was deleted and its floor passed at %s; create a new lease and use that",
			lease, earliestRelease.UTC().Format(time.RFC3339))
	case leasePending, "":
		return refuse(NotYet, "lease %q has no Mac yet (Pending); wait until it is Bound: kubectl wait --for=condition=Bound macnodeleases/%s", lease, lease)
	case leaseReleasing:
		return refuse(TwentyFourHours, "lease %q is being released; create a new lease and use that", lease)
	default:
		return refuse(OneTenantPerChassis, "lease %q has ended (%s); create a new lease and use that", lease, phase)
	}
}

// CheckSlot refuses a third instance on a lease; taken has the names of the others.
func CheckSlot(lease string, taken []string) error {
	if len(taken) < MaxVMsPerMac {
		return nil
	}
	return refuse(TwoVMsPerChassis, "lease %q has %d of %d instances (%q); stop or delete one of them, or lease another Mac",
		lease, len(taken), MaxVMsPerMac, taken)
}

// CheckRunning refuses a number of running virtual machines above the maximum of a Mac.
func CheckRunning(node string, running int32) error {
	if running <= MaxVMsPerMac {
		return nil
	}
	return refuse(TwoVMsPerChassis, "Mac %q would run %d virtual machines, of %d allowed", node, running, MaxVMsPerMac)
}

// Resources are the resources of a Mac or of a virtual machine. A zero storage means no request.
type Resources struct {
	CPU, Memory, Storage resource.Quantity
}

// Add returns the sum.
func (r Resources) Add(o Resources) Resources {
	sum := Resources{r.CPU.DeepCopy(), r.Memory.DeepCopy(), r.Storage.DeepCopy()}
	sum.CPU.Add(o.CPU)
	sum.Memory.Add(o.Memory)
	sum.Storage.Add(o.Storage)
	return sum
}

// Sub returns the difference.
func (r Resources) Sub(o Resources) Resources {
	rest := Resources{r.CPU.DeepCopy(), r.Memory.DeepCopy(), r.Storage.DeepCopy()}
	rest.CPU.Sub(o.CPU)
	rest.Memory.Sub(o.Memory)
	rest.Storage.Sub(o.Storage)
	return rest
}

// CheckFit refuses an instance that does not fit on a Mac of a class: used plus asked must not
// exceed capacity minus reserved.
func CheckFit(class string, capacity, reserved, taken, asked Resources) error {
	free := capacity.Sub(reserved).Sub(taken)
	for _, r := range []struct {
		name        string
		asked, free resource.Quantity
	}{
		{"cpu", asked.CPU, free.CPU},
		{"memory", asked.Memory, free.Memory},
		{"storage", asked.Storage, free.Storage},
	} {
		if r.asked.Cmp(r.free) > 0 {
			return refuse(Fit, "the instance asks for %s %s, but a Mac of class %q has %s left for it; use a smaller instance class, or a larger Mac",
				r.asked.String(), r.name, class, r.free.String())
		}
	}
	return nil
}
