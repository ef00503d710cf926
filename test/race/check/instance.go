package check

import (
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// ended reports whether an instance has ended.
func ended(i *instancev1alpha1.MacOSInstance) bool {
	return i.Status.Phase == instancev1alpha1.MacOSInstanceStopped || i.Status.Phase == instancev1alpha1.MacOSInstanceFailed
}

// runs reports whether an instance counts: from the grant of its start until its end.
func runs(i *instancev1alpha1.MacOSInstance) bool {
	return i != nil && i.Status.StartGrantedAt != nil && !ended(i)
}

func (c *Checker) instance(name string, value []byte, deleted bool) error {
	old, exists := c.instances[name]
	key := instancePrefix + name
	new, err := keep(c, key, value, deleted, old, &instancev1alpha1.MacOSInstance{}, exists)
	if err != nil {
		return err
	}
	if old != nil && !ended(old) {
		c.forget(old)
	}
	if new == nil {
		delete(c.instances, name)
		if old != nil && !ended(old) {
			c.violate(key, "Slots", "it was deleted before its end, in phase %s", old.Status.Phase)
		}
		return nil
	}
	c.instances[name] = new
	if !ended(new) {
		c.remember(key, new)
	}
	if ended(new) || new.Status.StopRequest != nil {
		c.stopped[key] = true
	}
	switch {
	case old == nil:
		c.checkCreation(key, new)
	case ended(old) && new.Status.Phase != old.Status.Phase:
		c.violate(key, "Phase", "it has ended as %s and is %s", old.Status.Phase, new.Status.Phase)
	case old.Status.MachineID != "" && old.Status.MachineID != new.Status.MachineID, old.Status.MACAddress != "" && old.Status.MACAddress != new.Status.MACAddress:
		c.violate(key, "Identity", "it changes its machine ID or MAC address")
	}
	if !runs(old) && runs(new) {
		c.current.changes[change{rackv1alpha1.InstanceStarted, string(new.UID)}]++
	}
	if runs(old) && !runs(new) {
		c.current.changes[change{rackv1alpha1.InstanceStopped, string(new.UID)}]++
	}
	if new.Status.StartGrantedAt == nil && (new.Status.MachineID != "" || new.Status.StartedAt != nil) {
		c.violate(key, "Grant", "it has a machine ID, or runs, and its start was not granted")
	}
	if !runs(old) && runs(new) && (new.Status.StopRequest != nil || new.Status.Phase != instancev1alpha1.MacOSInstanceStarting) {
		c.violate(key, "Grant", "its start is granted while it is %s, stop request %v", new.Status.Phase, new.Status.StopRequest)
	}
	if runs(new) && (new.Status.MachineID == "" || new.Status.MACAddress == "") {
		c.violate(key, "Identity", "it runs without a machine ID or MAC address")
	}
	return nil
}

// remember adds an instance that has not ended.
func (c *Checker) remember(key string, i *instancev1alpha1.MacOSInstance) {
	lease := i.Namespace + "/" + i.Spec.LeaseName
	if c.live[lease] == nil {
		c.live[lease] = map[string]types.UID{}
	}
	c.live[lease][i.Name] = i.UID
	c.current.leases[lease] = true
	if runs(i) {
		if c.running[i.Status.NodeName] == nil {
			c.running[i.Status.NodeName] = map[types.UID]bool{}
		}
		c.running[i.Status.NodeName][i.UID] = true
		c.current.nodes[i.Status.NodeName] = true
	}
	name := i.Namespace + "/" + i.Name
	c.wants(key, "machine-id", i.Status.MachineID, name)
	c.wants(key, "mac-address", i.Status.MACAddress, name)
	c.wants(key, "image-use", i.Spec.ImageName+"/"+string(i.UID), name)
	if c.images[i.Spec.ImageName] == nil {
		c.violate(key, "Image", "its image %s does not exist", i.Spec.ImageName)
	}
}

func (c *Checker) forget(i *instancev1alpha1.MacOSInstance) {
	lease := i.Namespace + "/" + i.Spec.LeaseName
	delete(c.live[lease], i.Name)
	if len(c.live[lease]) == 0 {
		delete(c.live, lease)
	}
	c.current.leases[lease] = true
	if runs(i) {
		delete(c.running[i.Status.NodeName], i.UID)
		c.current.nodes[i.Status.NodeName] = true
	}
	c.unwant("machine-id", i.Status.MachineID)
	c.unwant("mac-address", i.Status.MACAddress)
	c.unwant("image-use", i.Spec.ImageName+"/"+string(i.UID))
}

// checkCreation checks that a lease may have a new instance. Other objects of the same transaction
// are known.
func (c *Checker) checkCreation(key string, new *instancev1alpha1.MacOSInstance) {
	name := new.Namespace + "/" + new.Spec.LeaseName
	lease := c.leases[name]
	switch {
	case lease == nil:
		c.violate(key, "OneTenantPerChassis", "it is created without its lease %s", name)
		return
	case lease.Status.Phase != rackv1alpha1.MacNodeLeaseBound && lease.Status.Phase != rackv1alpha1.MacNodeLeaseHeld:
		c.violate(key, "TwentyFourHours", "it is created while its lease %s is %s", name, lease.Status.Phase)
	case lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld && lease.Status.EarliestReleaseAt.Before(&new.CreationTimestamp):
		c.violate(key, "TwentyFourHours", "it is created at %s, after the floor of its lease at %s", new.CreationTimestamp, lease.Status.EarliestReleaseAt)
	}
	if new.Status.NodeName != lease.Status.NodeName || new.Status.SerialNumber != lease.Status.SerialNumber {
		c.violate(key, "OneTenantPerChassis", "it is on Mac %s, its lease has %s", new.Status.NodeName, lease.Status.NodeName)
	}
	if len(new.OwnerReferences) != 1 || new.OwnerReferences[0].UID != lease.UID {
		c.violate(key, "OneTenantPerChassis", "it is not owned by its lease")
	}
}

func (c *Checker) checkIndex(key string) {
	have, exists := c.index[key]
	want, wanted := c.want[key]
	if exists != wanted || have != want {
		c.violate(key, "Index", "the index key is %q, not %q", have, want)
	}
}
