package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// record checks a record and its place in its chain.
func (c *Checker) record(name string, value []byte, deleted bool) error {
	key := recordPrefix + name
	if deleted {
		c.checkExpiry(key, name)
		return nil
	}
	record, err := decode(value, &rackv1alpha1.AuditRecord{})
	if err != nil {
		return err
	}
	c.written[write{key, c.rev}] = Sum(record)
	if c.created[key] {
		c.violate(key, "Ledger", "it was changed")
	}
	c.created[key] = true
	c.counts[record.Type]++
	c.current.records = append(c.current.records, record)

	id, namespace := chainOf(record), record.Tenant
	if namespace == "" || record.Type == rackv1alpha1.CrossTenantRejected {
		namespace = systemSpace
	}
	if want := fmt.Sprintf("%s/%s-%012d", namespace, id, record.Sequence); name != want {
		c.violate(key, "Ledger", "its place is %s", want)
	}
	last := c.chains[id]
	if last == nil {
		last = &chain{}
	}
	if record.Sequence != last.sequence+1 || record.PreviousHash != last.hash {
		c.violate(key, "Ledger", "it follows %d (%s), but the last of its chain is %d (%s)", record.Sequence-1, record.PreviousHash, last.sequence, last.hash)
	}
	if record.Time.Time.Before(last.time) {
		c.violate(key, "Ledger", "its time is %s, before the last record's %s", record.Time, last.time)
	}
	data, err := canonical(record, "apiVersion", "kind", "metadata", "hash")
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(data); record.Hash != hex.EncodeToString(sum[:]) {
		c.violate(key, "Ledger", "its hash is %s, not %x", record.Hash, sum)
	}
	place := &chain{record.Sequence, record.Hash, record.Time.Time}
	c.chains[id], c.places[placeOf(id, record.Sequence)] = place, place
	if record.Time.After(c.newest) {
		c.newest = record.Time.Time
	}
	head := headIndex + "/" + url.PathEscape(id)
	c.want[head] = fmt.Sprintf("%d %s %d", record.Sequence, record.Hash, record.Time.UnixMicro())
	c.current.index[head] = true
	return nil
}

// placeOf returns the name of the record of a chain with a sequence number.
func placeOf(id string, sequence int64) string { return fmt.Sprintf("%s-%012d", id, sequence) }

// checkExpiry checks that only an old record is deleted, and that a checkpoint of its chain proves
// it.
func (c *Checker) checkExpiry(key, name string) {
	_, place, _ := strings.Cut(name, "/")
	record := c.places[place]
	if record == nil {
		c.violate(key, "Ledger", "it was deleted without having existed")
		return
	}
	id := place[:strings.LastIndexByte(place, '-')]
	if age := c.newest.Sub(record.time); age < retention {
		c.violate(key, "Ledger", "it was deleted at the age of %s", age)
	}
	if c.checkpoints[id] < record.sequence {
		c.violate(key, "Ledger", "it was deleted, but the checkpoint of its chain is at %d", c.checkpoints[id])
	}
	delete(c.places, place)
}

// checkpoint checks that a checkpoint belongs to a record of its chain, and does not go back.
func (c *Checker) checkpoint(key, escaped, value string) {
	id, err := url.PathUnescape(escaped)
	var sequence, micros int64
	var hash string
	if _, scanErr := fmt.Sscanf(value, "%d %s %d", &sequence, &hash, &micros); err != nil || scanErr != nil {
		c.violate(key, "Ledger", "it is %q", value)
		return
	}
	record := c.places[placeOf(id, sequence)]
	if record == nil || record.hash != hash || record.time.UnixMicro() != micros {
		c.violate(key, "Ledger", "the checkpoint is %q, and the record is %v", value, record)
	}
	if sequence < c.checkpoints[id] {
		c.violate(key, "Ledger", "the checkpoint goes back from %d to %d", c.checkpoints[id], sequence)
	}
	c.checkpoints[id] = sequence
}

func chainOf(record *rackv1alpha1.AuditRecord) string {
	switch {
	case record.Chassis.SerialNumber != "":
		return strings.ToLower(record.Chassis.SerialNumber)
	case record.Tenant != "":
		return "tenant-" + record.Tenant
	}
	return "tenant-" + systemSpace
}

// checkRecords checks that a revision has exactly the records of its changes.
func (c *Checker) checkRecords() {
	for _, record := range c.current.records {
		key := recordPrefix + record.Namespace + "/" + record.Name
		subject, ok := subjectOf(record)
		if !ok {
			continue // a rejection
		}
		proof := change{record.Type, subject}
		if c.current.changes[proof] == 0 {
			c.violate(key, "Ledger", "it records a change that was not made: %s of %s", proof.kind, proof.subject)
			continue
		}
		c.current.changes[proof]--
		if record.Type != rackv1alpha1.NodeQuarantined && record.Type != rackv1alpha1.NodeRecovered {
			if since, twice := c.proved[proof]; twice {
				c.violate(key, "Ledger", "%s of %s is recorded since revision %d", proof.kind, proof.subject, since)
			}
			c.proved[proof] = c.rev
		}
		c.checkDetails(key, record)
	}
	for proof, n := range c.current.changes {
		if n != 0 {
			c.violate(proof.subject, "Ledger", "%s is not recorded", proof.kind)
		}
	}
}

// subjectOf returns the subject of a change's record. Other records are rejections.
func subjectOf(record *rackv1alpha1.AuditRecord) (string, bool) {
	switch record.Type {
	case rackv1alpha1.LeaseBound, rackv1alpha1.LeaseHeld, rackv1alpha1.LeaseReleased:
		if record.Lease != nil {
			return string(record.Lease.UID), true
		}
		return "", true
	case rackv1alpha1.InstanceStarted, rackv1alpha1.InstanceStopped:
		if record.Instance != nil {
			return string(record.Instance.UID), true
		}
		return "", true
	case rackv1alpha1.NodeQuarantined, rackv1alpha1.NodeRecovered:
		return record.Chassis.NodeName, true
	}
	return "", false
}

// checkDetails compares the details of a record with the change.
func (c *Checker) checkDetails(key string, record *rackv1alpha1.AuditRecord) {
	node := c.nodes[record.Chassis.NodeName]
	if node == nil && record.Type == rackv1alpha1.NodeRecovered {
		node = c.current.oldNode[record.Chassis.NodeName] // a Mac removed from the fleet leaves its quarantine
	}
	if node == nil {
		c.violate(key, "Ledger", "its Mac %s does not exist", record.Chassis.NodeName)
		return
	}
	wrong := func(format string, args ...any) {
		c.violate(key, "Ledger", "%s: %s", record.Type, fmt.Sprintf(format, args...))
	}
	if record.Chassis.SerialNumber != node.Spec.SerialNumber {
		wrong("Mac %s has serial number %s, not %s", node.Name, node.Spec.SerialNumber, record.Chassis.SerialNumber)
	}
	d := record.Details
	switch record.Type {
	case rackv1alpha1.LeaseBound, rackv1alpha1.LeaseHeld:
		lease := c.leases[record.Lease.Namespace+"/"+record.Lease.Name]
		if lease == nil || record.Tenant != lease.Namespace || lease.Status.NodeName != node.Name || !d.EarliestReleaseAt.Equal(lease.Status.EarliestReleaseAt) {
			wrong("it differs from the lease")
			return
		}
		if record.Type == rackv1alpha1.LeaseBound && (!d.BoundAt.Equal(lease.Status.BoundAt) || d.BoundAt.Time.Before(record.Time.Time) || d.BoundAt.Sub(record.Time.Time) >= time.Second) {
			wrong("its time is %s, but the lease is bound at %s", record.Time, lease.Status.BoundAt)
		}
		if record.Type == rackv1alpha1.LeaseHeld && (!lease.Status.HeldAt.Equal(d.AttemptedAt) || !lease.Status.HeldAt.Time.Equal(record.Time.Truncate(time.Second))) {
			wrong("its time is %s, but the lease is held at %s", record.Time, lease.Status.HeldAt)
		}
	case rackv1alpha1.LeaseReleased:
		old := c.current.oldLease[record.Lease.Namespace+"/"+record.Lease.Name]
		if old == nil || old.Status.BoundAt == nil || d.ReleasedAt == nil {
			wrong("its lease did not exist")
			return
		}
		if end := floorOf(old); record.Time.Time.Before(end) || d.ReleasedAt.Time.Before(end) || d.ReleasedAt.Time.Before(old.Status.EarliestReleaseAt.Time) {
			wrong("its time is %s, before the floor at %s", record.Time, end)
		}
		if !slices.Contains(d.NodeTaints, "macrack.io/unleased:NoSchedule") {
			wrong("the taints were %q", d.NodeTaints)
		}
	case rackv1alpha1.InstanceStarted, rackv1alpha1.InstanceStopped:
		i := c.instances[record.Instance.Namespace+"/"+record.Instance.Name]
		if i == nil || i.Status.NodeName != node.Name || d.MachineID != i.Status.MachineID || d.MACAddress != i.Status.MACAddress || record.Tenant != i.Namespace {
			wrong("it differs from the instance")
			return
		}
		if d.LocalVMs == nil || *d.LocalVMs != node.Status.RunningVMs {
			wrong("the Mac counts %d virtual machines, but the record has %v", node.Status.RunningVMs, d.LocalVMs)
		}
	}
}
