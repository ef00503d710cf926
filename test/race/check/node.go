package check

import (
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func (c *Checker) node(name string, value []byte, deleted bool) error {
	was, exists := c.nodes[name]
	is, err := keep(c, NodeKey(name), value, deleted, was, &rackv1alpha1.MacNode{}, exists)
	if err != nil {
		return err
	}
	c.current.nodes[name] = true
	c.current.oldNode[name] = was
	if was != nil {
		c.unwant("serial-number", was.Spec.SerialNumber)
		if ref := was.Status.LeaseRef; ref != nil {
			c.current.leases[ref.Namespace+"/"+ref.Name] = true
			if is == nil {
				c.violate(NodeKey(name), "OneTenantPerChassis", "a Mac of lease %s/%s is deleted", ref.Namespace, ref.Name)
			}
		}
	}
	if was != nil && was.Status.Quarantine != nil && (is == nil || is.Status.Quarantine == nil) {
		c.current.changes[change{rackv1alpha1.NodeRecovered, name}]++
	}
	if is == nil {
		delete(c.nodes, name)
		return nil
	}
	if was != nil && was.Status.Quarantine == nil && is.Status.Quarantine != nil {
		c.current.changes[change{rackv1alpha1.NodeQuarantined, name}]++
	}
	c.nodes[name] = is
	c.wants(NodeKey(name), "serial-number", is.Spec.SerialNumber, name)
	if ref := is.Status.LeaseRef; ref != nil {
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
	was, changed := c.current.oldNode[name]
	if !changed {
		was = node
	}
	ref := node.Status.LeaseRef
	if ref == nil {
		if running > 0 {
			c.violate(key, "OneTenantPerChassis", "it has no lease, and %d virtual machines run", running)
		}
		if was != nil && was.Status.LeaseRef != nil {
			if was.Status.Scrub == nil || was.Status.Scrub.LeaseUID != was.Status.LeaseRef.UID || len(was.Status.Scrub.Remaining) > 0 {
				c.violate(key, "Release", "it is released and not scrubbed of lease %s", was.Status.LeaseRef.Name)
			}
		}
		return
	}
	lease := c.leases[ref.Namespace+"/"+ref.Name]
	if lease == nil || lease.UID != ref.UID || !holds(lease) || lease.Status.NodeName != name {
		c.violate(key, "OneTenantPerChassis", "it has lease %s/%s (%s), which does not have it", ref.Namespace, ref.Name, ref.UID)
	}
	switch {
	case was == nil:
		c.violate(key, "OneTenantPerChassis", "it is created with a lease")
	case was.Status.LeaseRef == nil && was.Status.Phase != rackv1alpha1.MacNodeAvailable:
		c.violate(key, "OneTenantPerChassis", "it is leased while it is %s", was.Status.Phase)
	case was.Status.LeaseRef != nil && was.Status.LeaseRef.UID != ref.UID:
		c.violate(key, "OneTenantPerChassis", "it goes from lease %s to lease %s", was.Status.LeaseRef.UID, ref.UID)
	}
}
