package ledger

import (
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// lose adds a break if a record states that the Mac has seen records that the chain does not have.
// The server may have been restored from a backup. The lost records are from the time between the
// last record and this one.
func (s *chassis) lose(record *rack.AuditRecord, at int64) {
	if !rules.LostHistory(record.Details.Reason) {
		return
	}
	s.chain.addBreakAndForget(span{s.last, at}, record, record.Details.Message, nameIn(record))
}
