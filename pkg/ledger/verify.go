package ledger

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// maxForks is the maximum number of distinguished records with the same sequence number.
const maxForks = 8

// A chain is the state of the verification of a chain. Records are verified in order, but count
// only after the next record has confirmed them, so that tampered records cannot prove a violation.
type chain struct {
	report *report
	name   string
	serial string // empty for the chain of a tenant

	sequence        int64
	time            int64               // of the last trusted record; never decreases
	hashes          []string            // of the records with the last sequence number; more than one is a fork
	parents         []string            // the hashes of the previous record
	last            []*rack.AuditRecord // the records with the last sequence number
	previous        string              // the previousHash of the last record
	suspect         bool                // whether the last record is known to be bad
	edited          []pendingBreak
	forked          *rack.ComplianceViolation // the last pair of the current fork; nil without one
	reportedWindows windowSet                 // the windows that have counted that fork

	pending     *rack.AuditRecord // verified, but not confirmed yet; may be nil
	pendingTime int64

	first      int64 // the sequence number of the first record
	headSeen   bool  // whether the record of the known head was there, with its hash
	unanchored bool  // whether the chain is known not to continue its anchors

	broken, seen, lost windowSet // the windows in which the chain is broken, has facts, lacks lost records
	chassis            chassis
	facts              factLog // empty if the chain is not remembered
	leases             []Lease // that ended; empty if the report keeps none
}

// A pendingBreak is an edited record, whose time is only known from the next valid record.
type pendingBreak struct {
	from      int64
	violation rack.ComplianceViolation
}

func newChain(r *report, name string) *chain {
	c := &chain{report: r, name: name, time: always}
	c.chassis.chain = c
	return c
}

// add adds the next record of the chain; intact is true if its hash is that of its content.
func (c *chain) add(record *rack.AuditRecord, sequence int64, intact bool) error {
	if c.serial == "" && record.Chassis.SerialNumber != "" && Chain(record) == c.name {
		c.serial = record.Chassis.SerialNumber
	}
	if c.sequence == 0 {
		c.first = sequence
		c.start(record, sequence)
	} else if sequence < c.sequence {
		return fmt.Errorf("%w: %s comes after sequence %d", ErrNotInOrder, record.Name, c.sequence)
	}
	c.count(record)

	isHead := c.head() != nil && c.head().Sequence == sequence
	if flaw := c.flaw(record, sequence, intact); flaw != "" {
		c.addEdited(record, sequence, flaw, isHead && !c.headSeen)
		return nil
	}
	if flaw := c.anchorFlaw(record, sequence); flaw != "" {
		c.addEdited(record, sequence, flaw, true)
		return nil
	}
	c.headSeen = c.headSeen || isHead
	at := micros(record)
	c.flushEdited(max(c.time, at))
	if sequence == c.sequence {
		c.fork(record, at)
		return nil
	}
	c.reportFork(span{c.time, max(c.time, at)})
	if len(c.hashes) == 1 {
		c.forked = nil
	}
	switch {
	case c.sequence != 0 && sequence > c.sequence+1:
		c.confirm()
		c.addBreakAndForget(span{c.since(sequence), at}, record, fmt.Sprintf("%s missing between %s and %s: removed, or never written",
			missing(c.sequence+1, sequence-1), nameIn(c.last[0]), nameIn(record)), nameIn(c.last[0]), nameIn(record))
	case c.sequence != 0 && !c.suspect && !slices.Contains(c.hashes, record.PreviousHash):
		c.discard()
		c.addBreakAndForget(span{c.since(sequence), at}, record, fmt.Sprintf("previousHash of %s does not match the hash of %s; one of them was replaced",
			nameIn(record), nameIn(c.last[0])), nameIn(c.last[0]), nameIn(record))
	default:
		c.confirm()
	}
	if at < c.time {
		c.addBreakAt(span{at, c.time}, record, fmt.Sprintf("%s has time %s, earlier than the previous record (%s)",
			nameIn(record), formatMicros(at), formatMicros(c.time)), nameIn(c.last[0]), nameIn(record))
	}
	c.advance(record, sequence)
	c.time = max(c.time, at)
	c.pending, c.pendingTime = record, c.time
	return nil
}

// start checks the first existing record of the chain.
func (c *chain) start(record *rack.AuditRecord, sequence int64) {
	at := micros(record)
	kind := chainBegan
	if sequence > 1 {
		kind = remainderBegan
	}
	c.prove(fact{kind: kind, span: span{at, at}})
	first := max(1, c.report.anchors[c.name].Since)
	if checkpoint := c.checkpoint(); checkpoint != nil {
		first = max(first, checkpoint.Sequence+1)
	}
	if c.report.anchors != nil && sequence > first {
		// The known head vouches for the times of the records before it only.
		lasted := span{always, at}
		if head := c.head(); head == nil || sequence > head.Sequence {
			lasted, c.unanchored = allTime, true
		}
		c.addBreakAt(lasted, record, fmt.Sprintf("%s missing before %s, without a checkpoint that records the expiry",
			missing(first, sequence-1), nameIn(record)), nameIn(record))
	}
	c.chassis.unknown = sequence > 1
}

func (c *chain) checkpoint() *Head { return c.report.anchors[c.name].Checkpoint }

func (c *chain) head() *Head { return c.report.anchors[c.name].Head }

// flaw returns the error in a record by itself, or an empty string.
func (c *chain) flaw(record *rack.AuditRecord, sequence int64, intact bool) string {
	switch {
	case !intact:
		return "was edited: its hash does not match its content"
	case record.Sequence != sequence || !c.isOf(record):
		return fmt.Sprintf("is misplaced: its fields identify it as %s", Name(Chain(record), record.Sequence))
	case record.Namespace != Namespace(record):
		return fmt.Sprintf("is misplaced: it belongs in namespace %s", Namespace(record))
	case sequence == 1 && record.PreviousHash != "":
		return "is the first of its chain, but has a previousHash"
	}
	return ""
}

// anchorFlaw describes how a record that is good by itself contradicts the anchors of the chain, if
// it does.
func (c *chain) anchorFlaw(record *rack.AuditRecord, sequence int64) string {
	if head := c.head(); head != nil && head.Sequence == sequence && head.Hash != record.Hash {
		return "was replaced: the head of its chain has another hash"
	}
	checkpoint := c.checkpoint()
	switch {
	case checkpoint == nil:
	case checkpoint.Sequence == sequence && checkpoint.Hash != record.Hash,
		c.sequence == 0 && checkpoint.Sequence == sequence-1 && checkpoint.Hash != record.PreviousHash:
		return "was replaced: the checkpoint of its chain has another hash"
	}
	return ""
}

// isOf reports whether record is of this chain.
func (c *chain) isOf(record *rack.AuditRecord) bool {
	serial := record.Chassis.SerialNumber
	return serial != "" && serial == c.serial || Chain(record) == c.name
}

// addEdited adds a record that is known to be edited: only its place in the chain is used. If it is
// in the place of an anchor, the times around it are unproved, so the break is in all windows.
func (c *chain) addEdited(record *rack.AuditRecord, sequence int64, flaw string, isAnchor bool) {
	if sequence == c.sequence {
		c.discard()
	} else {
		c.confirm()
	}
	v := c.violation(record, nameIn(record)+" "+flaw, nameIn(record))
	if c.sequence != 0 && sequence > c.sequence+1 {
		v.Message += fmt.Sprintf("; also, %s missing before it", missing(c.sequence+1, sequence-1))
	}
	if c.time != always {
		v.Time = metav1.NewMicroTime(time.UnixMicro(c.time).UTC())
	}
	if len(c.edited) == maxViolations {
		c.flushEdited(forever)
	}
	if isAnchor {
		c.unanchored = true
		v.SerialNumber = c.serial
		c.addBreak(allTime, v)
	} else {
		c.edited = append(c.edited, pendingBreak{from: c.since(sequence), violation: v})
	}
	c.report.breaks()
	c.chassis.forget()
	if sequence == c.sequence {
		c.addTwin(record)
	} else {
		c.advance(record, sequence)
	}
	c.suspect = true
}

// fork adds a second record with the last sequence number.
func (c *chain) fork(record *rack.AuditRecord, at int64) {
	c.discard()
	c.chassis.forget()
	// A fork whose branches continue counts as one fork.
	continuesFork := c.forked != nil && len(c.parents) > 1 && record.PreviousHash != c.previous && slices.Contains(c.parents, record.PreviousHash)
	if !continuesFork {
		c.reportedWindows = 0
	}
	v := c.violation(record, fmt.Sprintf("%s and %s have the same sequence number; the chain was forked",
		nameIn(c.last[0]), nameIn(record)), nameIn(c.last[0]), nameIn(record))
	c.forked = &v
	c.addTwin(record)
	c.reportFork(span{min(c.time, at), max(c.time, at)})
	c.time = max(c.time, at)
}

// reportFork breaks the chain in the windows of s that have not counted the current fork. Neither
// branch counts, because the true one is unknown. The state of the Mac is known again after the
// next sequence number with a single record.
func (c *chain) reportFork(s span) {
	if c.forked == nil || len(c.hashes) < 2 {
		return
	}
	c.report.breaks()
	c.report.during(s, func(i int, status *rack.ComplianceReportStatus) {
		if !c.reportedWindows.add(i) {
			return
		}
		addViolation(status, *c.forked)
		if c.broken.add(i) {
			status.BrokenChains++
		}
	})
}

func (c *chain) addTwin(record *rack.AuditRecord) {
	if len(c.hashes) < maxForks {
		c.hashes = append(c.hashes, record.Hash)
		c.last = append(c.last, record)
	}
}

// advance makes record the last of the chain.
func (c *chain) advance(record *rack.AuditRecord, sequence int64) {
	c.sequence = sequence
	c.previous = record.PreviousHash
	c.parents, c.hashes = c.hashes, append(c.parents[:0], record.Hash)
	c.last = append(c.last[:0], record)
	c.suspect = false
}

// count counts a record by its own content.
func (c *chain) count(record *rack.AuditRecord) {
	at := micros(record)
	c.prove(fact{kind: recorded, span: span{at, at}, mac: c.serial != ""})
}

// confirm counts the last record, which the next record has confirmed.
func (c *chain) confirm() {
	if c.pending != nil {
		c.chassis.apply(c.pending, c.pendingTime)
	}
	c.discard()
}

// discard drops the last record, which no record has confirmed.
func (c *chain) discard() { c.pending = nil }

// addBreakAndForget is addBreakAt, and makes the state of the Mac unknown.
func (c *chain) addBreakAndForget(s span, record *rack.AuditRecord, message string, records ...string) {
	c.addBreakAt(s, record, message, records...)
	c.chassis.forget()
}

// addBreakAt adds a break at a record, within s.
func (c *chain) addBreakAt(s span, record *rack.AuditRecord, message string, records ...string) {
	c.addBreak(s, c.violation(record, message, records...))
}

func (c *chain) addBreak(s span, v rack.ComplianceViolation) {
	c.report.breaks()
	c.report.violated(s, v)
	c.report.during(s, func(i int, status *rack.ComplianceReportStatus) {
		if c.broken.add(i) {
			status.BrokenChains++
		}
	})
}

func (c *chain) violation(record *rack.AuditRecord, message string, records ...string) rack.ComplianceViolation {
	return rack.ComplianceViolation{Rule: string(rules.UnbrokenLedger), SerialNumber: c.serial, Time: record.Time, Message: message, Records: records}
}

// flushEdited adds the breaks of edited records, which were written no later than the next valid
// record.
func (c *chain) flushEdited(until int64) {
	for _, edited := range c.edited {
		edited.violation.SerialNumber = c.serial
		c.addBreak(span{edited.from, until}, edited.violation)
	}
	c.edited = c.edited[:0]
}

// finish closes the chain at the last existing record.
func (c *chain) finish() {
	last := c.sequence
	if checkpoint := c.checkpoint(); checkpoint != nil {
		last = max(last, checkpoint.Sequence)
	}
	switch head := c.head(); {
	case head == nil:
	case last < head.Sequence:
		c.endUnknown(fmt.Sprintf("%s missing at the end of chain %s; its head is record %d",
			missing(last+1, head.Sequence), c.name, head.Sequence))
	case !c.reachesHead() && !c.unanchored:
		c.endUnknown(fmt.Sprintf("chain %s has no record %d that matches the stored head; records were replaced",
			c.name, head.Sequence))
	}
	c.flushEdited(forever)
	c.reportFork(span{c.time, forever})
	c.confirm()
	c.chassis.finish()
}

// since returns when a break before the record with a sequence number can have begun: after the
// record before the break. An auditor's head does not vouch for that record, whose time may be
// forged, so the break then has no beginning.
func (c *chain) since(sequence int64) int64 {
	if anchor := c.report.anchors[c.name]; anchor.Audited && sequence <= anchor.Head.Sequence {
		return always
	}
	return c.time
}

// reachesHead reports whether the records of the chain hold its known head, or begin after it
// because it was expired.
func (c *chain) reachesHead() bool {
	checkpoint := c.checkpoint()
	expired := checkpoint != nil && checkpoint.Sequence >= c.head().Sequence
	return c.headSeen || expired && (c.sequence == 0 || c.first > checkpoint.Sequence)
}

// endUnknown breaks the chain in all windows: no record in it has a time that the known head
// vouches for.
func (c *chain) endUnknown(message string) {
	c.unanchored = true
	c.confirm()
	var names []string
	for _, record := range c.last {
		names = append(names, nameIn(record))
	}
	c.addBreak(allTime, rack.ComplianceViolation{
		Rule: string(rules.UnbrokenLedger), SerialNumber: c.serial, Time: metav1.NewMicroTime(c.head().Time), Records: names, Message: message,
	})
	c.chassis.forget()
}

func micros(record *rack.AuditRecord) int64 { return record.Time.UnixMicro() }

func formatMicros(us int64) string {
	return time.UnixMicro(us).UTC().Format("2006-01-02T15:04:05.000000Z")
}

func nameIn(record *rack.AuditRecord) string { return record.Namespace + "/" + record.Name }

func missing(first, last int64) string {
	if first == last {
		return fmt.Sprintf("record %d is", first)
	}
	return fmt.Sprintf("records %d to %d are", first, last)
}
