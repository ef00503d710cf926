package check

import (
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func (c *Checker) node(name string, value []byte, deleted bool) error {
	old, exists := c.nodes[name]
	new, err := keep(c, NodeKey(name), value, deleted, old, &rackv1alpha1.MacNode{}, exists)
	if err != nil {
		return err
	}
	c.current.nodes[name] = true
	c.current.oldNode[name] = old
	if old != nil {
		c.unwant("serial-number", old.Spec.SerialNumber)
		if ref := old.Status.LeaseRef; ref != nil {
			c.current.leases[ref.Namespace+"/"+ref.Name] = true
			if new == nil {
				c.violate(NodeKey(name), "OneTenantPerChassis", "a Mac of lease %s/%s is deleted", ref.Namespace, ref.Name)
			}
		}
	}
	if old != nil && old.Status.Quarantine != nil && (new == nil || new.Status.Quarantine == nil) {
		c.current.changes[change{rackv1alpha1.NodeRecovered, name}]++
	}
	if new == nil {
		delete(c.nodes, name)
		return nil
	}
	if old != nil && old.Status.Quarantine == nil && new.Status.Quarantine != nil {
		c.current.changes[change{rackv1alpha1.NodeQuarantined, name}]++
	}
	c.nodes[name] = new
	c.wants(NodeKey(name), "serial-number", new.Spec.SerialNumber, name)
	if ref := new.Status.LeaseRef; ref != nil {
		c.current.leases[ref.Namespace+"/"+ref.Name] = true
	}
	return nil
}

// checkNode checks a Mac against its lease and its virtual machines.
func (c *Checker) checkNode(name string) {
	node, key := c.nodes[name], NodeKey(name)
	running := len(c.running[name])
	if node == nil {
		if running > 0 {
			c.violate(key, "TwoVMsPerChassis", "it was deleted, but %d virtual machines run on it", running)
		}
		return
	}
	if running > slotsPerMac || node.Status.RunningVMs > slotsPerMac {
		c.violate(key, "TwoVMsPerChassis", "%d virtual machines run, and it counts %d", running, node.Status.RunningVMs)
	}
	if running != int(node.Status.RunningVMs) {
		c.violate(key, "RunningVMs", "it counts %d virtual machines, and %d run", node.Status.RunningVMs, running)
	}
	old, changed := c.current.oldNode[name]
	if !changed {
		old = node
	}
	ref := node.Status.LeaseRef
	if ref == nil {
		if running > 0 {
			c.violate(key, "OneTenantPerChassis", "it has no lease, and %d virtual machines run", running)
		}
		if old != nil && old.Status.LeaseRef != nil {
			if old.Status.Scrub == nil || old.Status.Scrub.LeaseUID != old.Status.LeaseRef.UID || len(old.Status.Scrub.Remaining) > 0 {
				c.violate(key, "Release", "it is released and not scrubbed of lease %s", old.Status.LeaseRef.Name)
			}
		}
		return
	}
	lease := c.leases[ref.Namespace+"/"+ref.Name]
	if lease == nil || lease.UID != ref.UID || !holds(lease) || lease.Status.NodeName != name {
		c.violate(key, "OneTenantPerChassis", "it has lease %s/%s (%s), which does not have it", ref.Namespace, ref.Name, ref.UID)
	}
	switch {
	case old == nil:
		c.violate(key, "OneTenantPerChassis", "it is created with a lease")
	case old.Status.LeaseRef == nil && old.Status.Phase != rackv1alpha1.MacNodeAvailable:
		c.violate(key, "OneTenantPerChassis", "it is leased while it is %s", old.Status.Phase)
	case old.Status.LeaseRef != nil && old.Status.LeaseRef.UID != ref.UID:
		c.violate(key, "OneTenantPerChassis", "it goes from lease %s to lease %s", old.Status.LeaseRef.UID, ref.UID)
	}
}
