package ledger

import (
	"encoding/binary"
	"slices"

	"macrack.io/macrack/pkg/apis/rack"
)

// A fact is proved by the records of an unbroken chain. It does not depend on windows.
type fact struct {
	kind      factKind
	span      span
	mac       bool                      // whether the Mac counts in the windows of the span
	count     int64                     // of the kind
	violation *rack.ComplianceViolation // of a violated rule, or of a loss
}

type factKind byte

const (
	chainBegan     factKind = iota // with record 1
	remainderBegan                 // with a later record: the earlier ones were expired
	recorded
	startGranted
	ran // count virtual machines ran at once
	leased
	rejected          // count requests, for one of the three rules
	rejectedOtherwise // count requests
	violated
	lostHistory // the chain is broken in these windows
)

// prove adds a fact to the report, and to the proof for later reports.
func (c *chain) prove(f fact) {
	c.tell(f)
	if proof := c.report.proof; proof != nil {
		if proof.size += c.facts.add(f); proof.size > maxProof {
			c.report.forget()
		}
	}
}

// tell adds a fact to the windows that its span meets.
func (c *chain) tell(f fact) {
	switch f.kind {
	case chainBegan, remainderBegan:
		for _, w := range c.report.windows {
			w.began = min(w.began, f.span.from)
			if f.kind == remainderBegan {
				w.since = max(w.since, f.span.from)
			}
		}
		return
	case violated:
		c.report.violated(f.span, *f.violation)
		return
	case lostHistory:
		c.report.violated(f.span, *f.violation)
		c.report.during(f.span, func(i int, _ *rack.ComplianceReportStatus) { c.lost.add(i) })
		return
	}
	c.report.during(f.span, func(i int, status *rack.ComplianceReportStatus) {
		switch f.kind {
		case recorded:
			status.Records++
		case startGranted:
			status.VMStarts++
		case ran:
			status.MaxVMs = max(status.MaxVMs, f.count)
		case leased:
			status.Leases++
		case rejected:
			status.Rejected += f.count
		case rejectedOtherwise:
			status.OtherRejections += f.count
		}
		if f.mac && c.seen.add(i) {
			status.Chassis++
		}
	})
}

// factLog is a list of facts, in about 20 bytes for each record.
type factLog struct {
	data       []byte
	last       int64 // the beginning of the last fact
	violations []*rack.ComplianceViolation
}

// sizeOfViolation is the estimated size of a violation in bytes.
const sizeOfViolation = 1024

// add appends a fact, and returns its size in bytes.
func (l *factLog) add(f fact) int {
	size := -len(l.data)
	if f.violation != nil {
		f.count = int64(len(l.violations))
		l.violations = append(l.violations, f.violation)
		size += sizeOfViolation
	}
	kind := byte(f.kind) << 1
	if f.mac {
		kind |= 1
	}
	l.data = append(l.data, kind)
	l.data = binary.AppendVarint(l.data, f.span.from-l.last)
	l.data = binary.AppendVarint(l.data, f.span.to-f.span.from)
	l.data = binary.AppendVarint(l.data, f.count)
	l.last = f.span.from
	return size + len(l.data)
}

func (l *factLog) clone() factLog {
	return factLog{data: slices.Clone(l.data), last: l.last, violations: slices.Clone(l.violations)}
}

// each calls f with each fact, in order.
func (l *factLog) each(f func(fact)) {
	data, last := l.data, int64(0)
	next := func() int64 {
		value, n := binary.Varint(data)
		data = data[n:]
		return value
	}
	for len(data) > 0 {
		kind := data[0]
		data = data[1:]
		last += next()
		one := fact{kind: factKind(kind >> 1), mac: kind&1 != 0, span: span{last, last + next()}, count: next()}
		if one.kind == violated || one.kind == lostHistory {
			one.violation = l.violations[one.count]
		}
		f(one)
	}
}
