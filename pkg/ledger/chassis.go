package ledger

import (
	"fmt"
	"slices"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// maxUses is the maximum number of leases, virtual machines and violations of a Mac that are
// tracked at once.
const maxUses = 32

// A chassis is the state of a Mac according to its records: its leases and its virtual machines.
type chassis struct {
	chain   *chain
	unknown bool // whether missing records may have changed the state
	leases  []use
	vms     []use
	count   int64 // of the virtual machines
	since   int64 // the time since which there are that many
	open    []openViolation
	loss    *pendingBreak // a loss of history that has not ended; its Mac has not been restored
}

// A use is a lease of the Mac, or a virtual machine on it.
type use struct {
	object
	tenant    string
	from      int64
	record    string
	floor     time.Time // of a lease
	uncertain bool      // whether records after it are missing
	history   Lease     // of a lease
}

// An object is a reference of a record to a lease or an instance.
type object rack.AuditReference

// An openViolation lasts until its subject ends, or all uses that it conflicts with.
type openViolation struct {
	subject object
	others  []object
	from    int64
	tooMany bool // ends with the third virtual machine instead
	rack.ComplianceViolation
}

// apply updates the state of the Mac with a record at a time.
func (s *chassis) apply(record *rack.AuditRecord, at int64) {
	if s.chain.serial == "" && !isRejection(record.Type) {
		return // The record has no Mac.
	}
	switch record.Type {
	case rack.InstanceRejected, rack.CrossTenantRejected, rack.FloorTamperRejected:
		kind := rejected
		if record.Type == rack.InstanceRejected && !rules.IsRuleReason(record.Details.Reason) {
			kind = rejectedOtherwise
		}
		s.chain.prove(fact{kind: kind, span: span{at, at}, count: max(1, record.Details.Count)})
	case rack.LeaseBound:
		s.bind(record, at)
	case rack.LeaseHeld, rack.FloorLengthened:
		s.raise(record, at)
	case rack.LeaseReleased:
		s.release(record, at)
	case rack.InstanceStarted:
		granted := began(record, at)
		s.chain.prove(fact{kind: startGranted, span: span{granted, granted}})
		s.start(record, at)
	case rack.InstanceStopped:
		s.stop(record, at)
	case rack.NodeQuarantined:
		s.lose(record, at)
	case rack.NodeRecovered:
		s.restored(record, at)
	}
}

func (s *chassis) bind(record *rack.AuditRecord, at int64) {
	lease := newUse(record, record.Lease, began(record, at))
	lease.floor = floorOf(record)
	lease.history = historyOf(record)
	s.endUncertainLeases(lease.object, at)
	if find(s.leases, lease.object) >= 0 {
		return
	}
	others, records := describe(s.leases)
	if len(others) > 0 {
		first := s.leases[0]
		message := fmt.Sprintf("the Mac was bound to lease %s of %s while lease %s of %s had it",
			lease, lease.tenant, first, first.tenant)
		s.addViolation(rules.OneTenantPerChassis, lease.object, others, record, at, message, records)
	} else if otherTenants := s.vmsOfOthers(record.Tenant); len(otherTenants) > 0 {
		others, records = describe(otherTenants)
		message := fmt.Sprintf("the Mac was bound to lease %s of %s while instance %s of %s still ran on it",
			lease, lease.tenant, otherTenants[0], otherTenants[0].tenant)
		s.addViolation(rules.OneTenantPerChassis, lease.object, others, record, at, message, records)
	}
	s.addLease(lease)
}

func (s *chassis) addLease(lease use) {
	if len(s.leases) == maxUses {
		s.endLease(s.leases[0], lease.from)
		s.leases = slices.Delete(s.leases, 0, 1)
	}
	s.leases = append(s.leases, lease)
}

func (s *chassis) vmsOfOthers(tenant string) (otherTenants []use) {
	for _, vm := range s.vms {
		if vm.tenant != tenant {
			otherTenants = append(otherTenants, vm)
		}
	}
	return otherTenants
}

// raise sets the floor of a lease unless it had a later one.
func (s *chassis) raise(record *rack.AuditRecord, at int64) {
	s.adoptLease(record, at)
	if i := find(s.leases, objectOf(record.Lease)); i >= 0 {
		s.leases[i].raise(floorOf(record))
		s.leases[i].history.add(record)
	}
}

func (s *chassis) release(record *rack.AuditRecord, at int64) {
	s.adoptLease(record, at)
	floor := floorOf(record)
	records := []string{nameIn(record)}
	if i := find(s.leases, objectOf(record.Lease)); i >= 0 {
		lease := s.leases[i]
		lease.raise(floor)
		lease.history.add(record)
		floor = lease.floor
		records = []string{lease.record, nameIn(record)}
		if lease.record == nameIn(record) {
			records = records[1:]
		}
		s.leases = slices.Delete(s.leases, i, i+1)
		s.endLease(lease, at)
	}
	releasedAt := time.UnixMicro(at).UTC()
	if t := record.Details.ReleasedAt; t != nil && t.Time.Before(releasedAt) {
		releasedAt = t.UTC()
	}
	if !rules.FloorPassed(releasedAt, floor) {
		violation := s.violation(rules.TwentyFourHours, record, fmt.Sprintf(
			"lease %s of %s was released at %s, %s before its floor at %s", objectOf(record.Lease), record.Tenant,
			releasedAt.Format(time.RFC3339Nano), floor.Sub(releasedAt), floor.UTC().Format(time.RFC3339)), records)
		s.chain.prove(fact{kind: violated, span: span{at, at}, violation: &violation})
	}
}

func (s *chassis) start(record *rack.AuditRecord, at int64) {
	s.adoptLease(record, at)
	vm := newUse(record, record.Instance, began(record, at))
	if find(s.vms, vm.object) < 0 {
		s.checkTenant(vm, record, at)
		if len(s.vms) == maxUses {
			s.vms = slices.Delete(s.vms, 0, 1)
		}
		s.vms = append(s.vms, vm)
	}
	s.recount(record, at)
	if vm.from < at {
		s.chain.prove(fact{kind: ran, span: span{vm.from, at}, count: s.count})
	}
}

// checkTenant begins a violation if a virtual machine starts on a Mac that its tenant has not
// leased.
func (s *chassis) checkTenant(vm use, record *rack.AuditRecord, at int64) {
	if s.unknown || slices.ContainsFunc(s.leases, func(lease use) bool { return lease.tenant == vm.tenant }) {
		return
	}
	leased := "which had no lease"
	if len(s.leases) > 0 {
		leased = fmt.Sprintf("which %s had leased", s.leases[0].tenant)
	}
	others, records := describe(s.leases)
	s.addViolation(rules.OneTenantPerChassis, vm.object, others, record, at,
		fmt.Sprintf("instance %s of %s ran on the Mac, %s", vm, vm.tenant, leased), records)
}

func (s *chassis) stop(record *rack.AuditRecord, at int64) {
	s.adoptLease(record, at)
	if i := find(s.vms, objectOf(record.Instance)); i >= 0 {
		vm := s.vms[i]
		s.vms = slices.Delete(s.vms, i, i+1)
		s.end(vm.object, at)
	}
	s.recount(record, at)
}

// recount determines the number of running virtual machines after a record: the number of started
// ones, or the number in the record.
func (s *chassis) recount(record *rack.AuditRecord, at int64) {
	count := int64(len(s.vms))
	if said := record.Details.LocalVMs; said != nil {
		count = max(count, int64(*said))
	}
	wereTooMany, areTooMany := s.count > rules.MaxVMsPerMac, count > rules.MaxVMsPerMac
	s.counted(at)
	s.count, s.since = count, at
	if areTooMany && !wereTooMany {
		var records []string
		for _, vm := range s.vms {
			if vm.record != nameIn(record) {
				records = append(records, vm.record)
			}
		}
		s.addViolation(rules.TwoVMsPerChassis, object{}, nil, record, at, fmt.Sprintf("the Mac ran %d virtual machines at once; the limit is %d",
			count, rules.MaxVMsPerMac), records)
		s.open[len(s.open)-1].tooMany = true
	}
	if wereTooMany && !areTooMany {
		s.endIf(at, func(o *openViolation) bool { return o.tooMany })
	}
}

// counted reports the number of virtual machines until a time to the windows.
func (s *chassis) counted(until int64) {
	if s.count == 0 {
		return
	}
	s.chain.prove(fact{kind: ran, span: span{s.since, until}, count: s.count})
}

// adoptLease takes the lease of the Mac from a record after missing records.
func (s *chassis) adoptLease(record *rack.AuditRecord, at int64) {
	if !s.unknown || record.Lease == nil {
		return
	}
	lease := newUse(record, record.Lease, at)
	if boundAt := record.Details.BoundAt; boundAt != nil {
		lease.from = min(at, boundAt.UnixMicro())
	}
	lease.history = adoptedLease(record)
	s.endUncertainLeases(lease.object, at)
	if find(s.leases, lease.object) < 0 {
		s.addLease(lease)
	}
}

// endUncertainLeases ends all uncertain leases but one, because they may have ended in missing
// records. After that, the state is known.
func (s *chassis) endUncertainLeases(certain object, at int64) {
	if !s.unknown {
		return
	}
	s.unknown = false
	s.leases = slices.DeleteFunc(s.leases, func(lease use) bool {
		if lease.uncertain && !lease.is(certain) {
			s.endLease(lease, at)
			return true
		}
		return false
	})
	for i := range s.leases {
		s.leases[i].uncertain = false
	}
}

// forget makes the state unknown, because records are missing or wrong.
func (s *chassis) forget() {
	at := s.chain.time
	s.unknown = true
	for i := range s.leases {
		if !s.leases[i].uncertain {
			s.leases[i].uncertain = true
			s.leases[i].history.interrupt(time.UnixMicro(at))
		}
	}
	s.counted(at)
	s.vms, s.count, s.since = nil, 0, at
	s.endIf(at, func(*openViolation) bool { return true })
}

// finish reports uses and violations that have not ended to the windows.
func (s *chassis) finish() {
	for _, lease := range s.leases {
		s.leased(lease, forever)
	}
	s.counted(forever)
	s.endLoss(forever)
	s.endIf(forever, func(*openViolation) bool { return true })
}

func (s *chassis) endLease(lease use, at int64) {
	s.leased(lease, at)
	s.end(lease.object, at)
}

// leased reports to the windows that a lease had the Mac until a time.
func (s *chassis) leased(lease use, until int64) {
	s.chain.remember(lease.history.ended(lease.uncertain, until))
	s.chain.prove(fact{kind: leased, span: span{lease.from, until}, mac: s.chain.serial != ""})
}

// addViolation starts a violation at a record.
func (s *chassis) addViolation(rule rules.Rule, subject object, others []object, record *rack.AuditRecord, at int64, message string, records []string) {
	if len(s.open) == maxUses {
		oldest := &s.open[0]
		s.endIf(at, func(o *openViolation) bool { return o == oldest })
	}
	s.open = append(s.open, openViolation{
		subject: subject, others: others, from: at,
		ComplianceViolation: s.violation(rule, record, message, append(records, nameIn(record))),
	})
}

// end ends the violations that cannot outlast a lease or a virtual machine.
func (s *chassis) end(ended object, at int64) {
	s.endIf(at, func(o *openViolation) bool {
		if i := slices.Index(o.others, ended); i >= 0 {
			o.others = slices.Delete(o.others, i, i+1)
			return len(o.others) == 0
		}
		return o.subject == ended
	})
}

func (s *chassis) endIf(at int64, ended func(*openViolation) bool) {
	kept := s.open[:0]
	for i := range s.open {
		if o := &s.open[i]; ended(o) {
			violation := o.ComplianceViolation
			s.chain.prove(fact{kind: violated, span: span{o.from, at}, violation: &violation})
		} else {
			kept = append(kept, *o)
		}
	}
	s.open = kept
}

func (s *chassis) violation(rule rules.Rule, record *rack.AuditRecord, message string, records []string) rack.ComplianceViolation {
	return rack.ComplianceViolation{Rule: string(rule), SerialNumber: s.chain.serial, Time: record.Time, Message: message, Records: records}
}

func newUse(record *rack.AuditRecord, of *rack.AuditReference, at int64) use {
	return use{object: objectOf(of), tenant: record.Tenant, from: at, record: nameIn(record)}
}

func (u *use) raise(floor time.Time) {
	if floor.After(u.floor) {
		u.floor = floor
	}
}

// floorOf returns the floor according to a record of a lease: the recorded one, but at least 24
// hours after the binding.
func floorOf(record *rack.AuditRecord) time.Time {
	var floor time.Time
	switch d := record.Details; {
	case d.BoundAt != nil:
		floor = rules.EarliestRelease(d.BoundAt.Time, 0)
	case record.Type == rack.LeaseBound:
		floor = rules.EarliestRelease(record.Time.Time, 0)
	}
	if t := record.Details.EarliestReleaseAt; t != nil && t.After(floor) {
		floor = t.Time
	}
	return floor
}

func objectOf(r *rack.AuditReference) object {
	if r == nil {
		return object{}
	}
	return object(*r)
}

// is reports whether two references are to the same object. Some records have no UID.
func (o object) is(other object) bool {
	return o.Namespace == other.Namespace && o.Name == other.Name && (o.UID == other.UID || o.UID == "" || other.UID == "")
}

func (o object) String() string {
	if o.UID == "" {
		return o.Namespace + "/" + o.Name
	}
	return fmt.Sprintf("%s/%s (%s)", o.Namespace, o.Name, o.UID)
}

func find(uses []use, o object) int {
	return slices.IndexFunc(uses, func(u use) bool { return u.is(o) })
}

// describe returns a description of the uses, and the records that prove them.
func describe(uses []use) (objects []object, records []string) {
	for _, u := range uses {
		objects, records = append(objects, u.object), append(records, u.record)
	}
	return objects, records
}

func isRejection(t rack.AuditRecordType) bool {
	return t == rack.InstanceRejected || t == rack.CrossTenantRejected || t == rack.FloorTamperRejected
}
