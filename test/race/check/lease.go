package check

import (
	"slices"
	"strings"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"k8s.io/apimachinery/pkg/types"
)

func (c *Checker) lease(name string, value []byte, deleted bool) error {
	old, exists := c.leases[name]
	new, err := keep(c, leasePrefix+name, value, deleted, old, &rackv1alpha1.MacNodeLease{}, exists)
	if err != nil {
		return err
	}
	c.current.leases[name] = true
	c.current.oldLease[name] = old
	for _, lease := range []*rackv1alpha1.MacNodeLease{old, new} {
		if lease != nil && lease.Status.NodeName != "" {
			c.current.nodes[lease.Status.NodeName] = true
		}
	}
	if new == nil {
		delete(c.leases, name)
	} else {
		c.leases[name] = new
	}
	c.checkLife(leasePrefix+name, old, new)
	return nil
}

// checkStops checks that only a hold marks instances, and that it marks exactly those in the lease.
func (c *Checker) checkStops(key string, old, new *rackv1alpha1.MacNodeLease) {
	marked := map[types.UID]bool{}
	for _, slot := range old.Status.Instances {
		marked[slot.UID] = slot.Stop || old.Status.Phase == rackv1alpha1.MacNodeLeaseBound && new.Status.Phase == rackv1alpha1.MacNodeLeaseHeld
	}
	for _, slot := range new.Status.Instances {
		if slot.Stop != marked[slot.UID] {
			c.violate(key, "Slots", "the mark of instance %s is %t, wanted %t", slot.Name, slot.Stop, marked[slot.UID])
		}
	}
}

// holds reports whether a lease has a Mac.
func holds(lease *rackv1alpha1.MacNodeLease) bool {
	return lease != nil && lease.Status.NodeName != "" && lease.Status.Phase != rackv1alpha1.MacNodeLeaseReleased
}

func floorOf(lease *rackv1alpha1.MacNodeLease) time.Time {
	return lease.Status.BoundAt.Add(max(floor, lease.Spec.MinimumDuration.Value()))
}

var leasePhases = []rackv1alpha1.MacNodeLeasePhase{rackv1alpha1.MacNodeLeasePending, rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld, rackv1alpha1.MacNodeLeaseReleasing, rackv1alpha1.MacNodeLeaseReleased}

// checkLife checks the changes of a lease.
func (c *Checker) checkLife(key string, old, new *rackv1alpha1.MacNodeLease) {
	if old == nil {
		if holds(new) || new.Status.Phase != rackv1alpha1.MacNodeLeasePending {
			c.violate(key, "OneTenantPerChassis", "it is created %s", new.Status.Phase)
		}
		return
	}
	uid := string(old.UID)
	if !holds(old) && holds(new) {
		c.bound[key] = new.Status.NodeName
		c.current.changes[change{rackv1alpha1.LeaseBound, uid}]++
	}
	if holds(old) && !holds(new) {
		c.released[key] = true
		c.current.changes[change{rackv1alpha1.LeaseReleased, uid}]++
		if old.Status.Phase != rackv1alpha1.MacNodeLeaseReleasing {
			c.violate(key, "TwentyFourHours", "it is released while it is %s", old.Status.Phase)
		}
		if n := len(c.live[strings.TrimPrefix(key, leasePrefix)]); n > 0 {
			c.violate(key, "OneTenantPerChassis", "it is released while %d instances have not ended", n)
		}
	}
	if new == nil {
		return
	}
	if old.Status.Phase != rackv1alpha1.MacNodeLeaseHeld && new.Status.Phase == rackv1alpha1.MacNodeLeaseHeld {
		c.current.changes[change{rackv1alpha1.LeaseHeld, uid}]++
	}
	c.checkStops(key, old, new)
	if slices.Index(leasePhases, new.Status.Phase) < slices.Index(leasePhases, old.Status.Phase) {
		c.violate(key, "Phase", "it goes back from %s to %s", old.Status.Phase, new.Status.Phase)
	}
	if holds(old) && holds(new) {
		if !new.Status.BoundAt.Equal(old.Status.BoundAt) || new.Status.EarliestReleaseAt.Before(old.Status.EarliestReleaseAt) {
			c.violate(key, "TwentyFourHours", "its floor moves back from %s to %s", old.Status.EarliestReleaseAt, new.Status.EarliestReleaseAt)
		}
		if new.Status.NodeName != old.Status.NodeName {
			c.violate(key, "OneTenantPerChassis", "it moves from %s to %s", old.Status.NodeName, new.Status.NodeName)
		}
	}
	if holds(new) {
		if new.Status.BoundAt == nil || new.Status.EarliestReleaseAt == nil || new.Status.EarliestReleaseAt.Time.Before(floorOf(new)) {
			c.violate(key, "TwentyFourHours", "it is bound at %s and has its floor at %s", new.Status.BoundAt, new.Status.EarliestReleaseAt)
		}
		if !slices.Contains(new.Finalizers, floorFinalizer) {
			c.violate(key, "TwentyFourHours", "it has a Mac and no finalizer")
		}
		if new.DeletionTimestamp != nil && new.Status.Phase == rackv1alpha1.MacNodeLeaseBound {
			c.violate(key, "Phase", "it is deleted and Bound")
		}
	}
}

// checkLease checks a lease against its Mac and its instances.
func (c *Checker) checkLease(name string) {
	lease, key := c.leases[name], leasePrefix+name
	live := c.live[name]
	if lease == nil {
		for instance := range live {
			c.violate(key, "Slots", "it was deleted, but its instance %s has not ended", instance)
		}
		return
	}
	if n := len(lease.Status.Instances); n > slotsPerMac {
		c.violate(key, "TwoVMsPerChassis", "%d slots are taken", n)
	}
	if len(live) > slotsPerMac {
		c.violate(key, "TwoVMsPerChassis", "%d instances have not ended", len(live))
	}
	for _, slot := range lease.Status.Instances {
		if live[slot.Name] != slot.UID {
			c.violate(key, "Slots", "a slot is taken by %s (%s), which has ended or never was", slot.Name, slot.UID)
		}
	}
	for instance, uid := range live {
		if !slices.ContainsFunc(lease.Status.Instances, func(s rackv1alpha1.LeaseSlot) bool { return s.UID == uid && s.Name == instance }) {
			c.violate(key, "Slots", "instance %s (%s) has no slot", instance, uid)
		}
	}
	if len(live) > 0 && !holds(lease) {
		c.violate(key, "OneTenantPerChassis", "it has %d instances and no Mac", len(live))
	}
	if !holds(lease) {
		return
	}
	node := c.nodes[lease.Status.NodeName]
	if node == nil {
		c.violate(key, "OneTenantPerChassis", "its Mac %s does not exist", lease.Status.NodeName)
		return
	}
	if ref := node.Status.LeaseRef; ref == nil || ref.UID != lease.UID {
		c.violate(key, "OneTenantPerChassis", "its Mac %s has lease %v", node.Name, ref)
	}
	if node.Spec.SerialNumber != lease.Status.SerialNumber || node.Spec.ClassName != lease.Spec.ClassName ||
		lease.Spec.SerialNumber != "" && lease.Spec.SerialNumber != node.Spec.SerialNumber {
		c.violate(key, "OneTenantPerChassis", "it has Mac %s of class %s for %s of class %s", node.Spec.SerialNumber, node.Spec.ClassName, lease.Status.SerialNumber, lease.Spec.ClassName)
	}
	if !node.Status.EarliestReleaseAt.Equal(lease.Status.EarliestReleaseAt) {
		c.violate(key, "TwentyFourHours", "its floor is %s, its Mac's %s", lease.Status.EarliestReleaseAt, node.Status.EarliestReleaseAt)
	}
	if (node.Status.ReleasingSince != nil) != (lease.Status.Phase == rackv1alpha1.MacNodeLeaseReleasing) {
		c.violate(key, "Phase", "it is %s, and its Mac is releasing since %s", lease.Status.Phase, node.Status.ReleasingSince)
	}
	if since := node.Status.ReleasingSince; since != nil && since.Before(lease.Status.EarliestReleaseAt) {
		c.violate(key, "TwentyFourHours", "its Mac is releasing since %s, before the floor %s", since, lease.Status.EarliestReleaseAt)
	}
}
