package ledger

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// A Lease is the history of a lease, as its records prove it.
type Lease struct {
	rules.LeaseTimes
	Reference      rack.AuditReference
	Chassis        rack.AuditChassis
	ClassName, SKU string
	// Unproven is the cause if records are missing that could change the history.
	Unproven string
	// Created is the revision of etcd at which the first record of the lease was created, if the
	// source knows it.
	Created int64

	bound, floor, held, released string    // records
	provenUntil                  time.Time // if records after it are missing
}

// Causes of unproven leases.
const (
	unprovenBinding = "its LeaseBound record is missing; it may have expired"
	unprovenRecords = "records of its Mac are missing or were edited"
	unprovenRelease = "its LeaseReleased record is missing"
)

// Records returns the records that the times of the lease follow from, as namespace/name.
func (l *Lease) Records() []string {
	records := []string{l.bound, l.floor, l.held, l.released}
	return slices.DeleteFunc(records, func(record string) bool { return record == "" })
}

// historyOf returns the history of a lease that begins with its first record.
func historyOf(record *rack.AuditRecord) Lease {
	d := record.Details
	l := Lease{Reference: rack.AuditReference(objectOf(record.Lease)), Chassis: record.Chassis, ClassName: d.ClassName, SKU: d.SKU, bound: nameIn(record)}
	l.Reference.Namespace = record.Tenant
	l.BoundAt, l.Floor = record.Time.UTC().Truncate(time.Second), floorOf(record)
	if d.BoundAt != nil {
		l.BoundAt = d.BoundAt.UTC()
	}
	l.Created, _ = strconv.ParseInt(record.ResourceVersion, 10, 64) // a file has no revisions
	return l
}

// adoptedLease returns the history of a lease whose first records are missing. Some records have
// the time of the binding; otherwise only the time since this record is proven.
func adoptedLease(record *rack.AuditRecord) Lease {
	l := historyOf(record)
	l.bound = ""
	if record.Details.BoundAt == nil {
		l.Unproven = unprovenBinding
	}
	return l
}

// add adds a later record of the lease.
func (l *Lease) add(record *rack.AuditRecord) {
	d, name := record.Details, nameIn(record)
	if floor := floorOf(record); floor.After(l.Floor) {
		l.Floor = floor
	}
	if d.AttemptedAt != nil && l.DeletedAt.IsZero() {
		l.DeletedAt = d.AttemptedAt.UTC()
	}
	switch record.Type {
	case rack.FloorLengthened:
		l.floor = name
	case rack.LeaseHeld:
		l.held = cmp.Or(l.held, name)
	case rack.LeaseReleased:
		l.released, l.ReleasedAt = name, record.Time.UTC()
		if d.ReleasedAt != nil {
			l.ReleasedAt = d.ReleasedAt.UTC()
		}
	}
}

// interrupt records that records after a time are missing.
func (l *Lease) interrupt(at time.Time) {
	l.Unproven, l.provenUntil = cmp.Or(l.Unproven, unprovenRecords), at.UTC().Truncate(time.Second)
}

// ended returns the history of a lease that ends. A lease whose release is not recorded ends with
// its last proven time.
func (l Lease) ended(uncertain bool, until int64) Lease {
	if l.released != "" {
		return l
	}
	if uncertain {
		l.ReleasedAt = l.provenUntil
	} else if until != forever {
		l.ReleasedAt, l.Unproven = time.UnixMicro(until).UTC().Truncate(time.Second), cmp.Or(l.Unproven, unprovenRelease)
	}
	return l
}

// sizeOfLease is the estimated size of the history of a lease in bytes.
const sizeOfLease = 512

// remember adds the history of a lease to the chain.
func (c *chain) remember(l Lease) {
	if !c.report.keepsLeases {
		return
	}
	c.leases = append(c.leases, l)
	if proof := c.report.proof; proof != nil {
		if proof.size += sizeOfLease; proof.size > maxProof {
			c.report.forget()
		}
	}
}
