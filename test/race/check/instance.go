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
	was, exists := c.instances[name]
	key := instancePrefix + name
	is, err := keep(c, key, value, deleted, was, &instancev1alpha1.MacOSInstance{}, exists)
	if err != nil {
		return err
	}
	if was != nil && !ended(was) {
		c.forget(was)
	}
	if is == nil {
		delete(c.instances, name)
		if was != nil && !ended(was) {
			c.violate(key, "Slots", "it was deleted before its end, in phase %s", was.Status.Phase)
		}
		return nil
	}
	c.instances[name] = is
	if !ended(is) {
		c.remember(key, is)
	}
	if ended(is) || is.Status.StopRequest != nil {
		c.stopped[key] = true
	}
	switch {
	case was == nil:
		c.checkCreation(key, is)
	case ended(was) && is.Status.Phase != was.Status.Phase:
		c.violate(key, "Phase", "it has ended as %s and is %s", was.Status.Phase, is.Status.Phase)
	case was.Status.MachineID != "" && was.Status.MachineID != is.Status.MachineID, was.Status.MACAddress != "" && was.Status.MACAddress != is.Status.MACAddress:
		c.violate(key, "Identity", "it changes its machine ID or MAC address")
	}
	if !runs(was) && runs(is) {
		c.current.changes[change{rackv1alpha1.InstanceStarted, string(is.UID)}]++
	}
	if runs(was) && !runs(is) {
		c.current.changes[change{rackv1alpha1.InstanceStopped, string(is.UID)}]++
	}
	if is.Status.StartGrantedAt == nil && (is.Status.MachineID != "" || is.Status.StartedAt != nil) {
		c.violate(key, "Grant", "it has a machine ID, or runs, and its start was not granted")
	}
	if !runs(was) && runs(is) && (is.Status.StopRequest != nil || is.Status.Phase != instancev1alpha1.MacOSInstanceStarting) {
		c.violate(key, "Grant", "its start is granted while it is %s, stop request %v", is.Status.Phase, is.Status.StopRequest)
	}
	if runs(is) && (is.Status.MachineID == "" || is.Status.MACAddress == "") {
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
func (c *Checker) checkCreation(key string, is *instancev1alpha1.MacOSInstance) {
	name := is.Namespace + "/" + is.Spec.LeaseName
	lease := c.leases[name]
	switch {
	case lease == nil:
		c.violate(key, "OneTenantPerChassis", "it is created without its lease %s", name)
		return
	case lease.Status.Phase != rackv1alpha1.MacNodeLeaseBound && lease.Status.Phase != rackv1alpha1.MacNodeLeaseHeld:
		c.violate(key, "TwentyFourHours", "it is created while its lease %s is %s", name, lease.Status.Phase)
	case lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld && lease.Status.EarliestReleaseAt.Before(&is.CreationTimestamp):
		c.violate(key, "TwentyFourHours", "it is created at %s, after the floor of its lease at %s", is.CreationTimestamp, lease.Status.EarliestReleaseAt)
	}
	if is.Status.NodeName != lease.Status.NodeName || is.Status.SerialNumber != lease.Status.SerialNumber {
		c.violate(key, "OneTenantPerChassis", "it is on Mac %s, its lease has %s", is.Status.NodeName, lease.Status.NodeName)
	}
	if len(is.OwnerReferences) != 1 || is.OwnerReferences[0].UID != lease.UID {
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
