package ledger

import (
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// LossIn returns the description of the lost records of a Mac, if a record is that of a loss.
func LossIn(record *rack.AuditRecord) (message string, ok bool) {
	d := record.Details
	return d.Message, record.Type == rack.NodeQuarantined && d.WitnessedSequence > 0 && rules.LostHistory(d.Reason)
}

// lose begins a break at a record of a Mac that has seen records which the chain does not have. The
// server may have been restored from a backup. The break lasts until the Mac is restored, because
// its lease and its virtual machines are not recorded before that.
func (s *chassis) lose(record *rack.AuditRecord, at int64) {
	if _, ok := LossIn(record); !ok {
		return
	}
	from := int64(always)
	if t := record.Details.LostAfter; t != nil {
		from = min(at, t.UnixMicro())
	}
	if s.loss != nil { // a second loss
		from = min(from, s.loss.from)
		s.endLoss(at)
	}
	v := s.chain.violation(record, record.Details.Message, nameIn(record))
	s.loss = &pendingBreak{from: from, violation: v}
	s.forget()
}

// restored ends the break at the record of the end of a loss. Without the record of its beginning,
// which has expired, the break has no beginning.
func (s *chassis) restored(record *rack.AuditRecord, at int64) {
	if record.Details.WitnessedSequence == 0 {
		return
	}
	if s.loss == nil && s.chain.first > 1 {
		s.addLoss(span{always, at}, s.chain.violation(record, record.Details.Message, nameIn(record)))
	}
	s.endLoss(at)
}

func (s *chassis) endLoss(at int64) {
	if s.loss != nil {
		s.addLoss(span{s.loss.from, at}, s.loss.violation)
		s.loss = nil
	}
}

// addLoss adds a loss that the records prove. It does not refute other facts, so later reports can
// rely on them.
func (s *chassis) addLoss(during span, v rack.ComplianceViolation) {
	s.chain.prove(fact{kind: lostHistory, span: during, violation: &v})
}

// began returns the time since which the subject of a record uses the Mac. A restored lease or
// virtual machine has used it since before the loss.
func began(record *rack.AuditRecord, at int64) int64 {
	since := record.Details.StartGrantedAt
	if record.Type == rack.LeaseBound {
		since = record.Details.BoundAt
	}
	if record.Details.Reason != ReasonRestored || since == nil {
		return at
	}
	return min(at, since.UnixMicro())
}
