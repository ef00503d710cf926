package rules

import (
	"fmt"
	"time"
)

// A ChainPosition identifies a record of the chain of a Mac. The zero value is the position before
// the first record.
type ChainPosition struct {
	Sequence int64
	Hash     string
}

// History is the relation between the chain of a Mac on the server and the last record that the Mac
// has seen, its witness.
type History string

const (
	// HistoryIntact: the chain has the record that the Mac has seen.
	HistoryIntact History = ""
	// LedgerBehind: the chain ends before the record that the Mac has seen.
	LedgerBehind History = "LedgerBehind"
	// LedgerForked: the chain has another record in its place.
	LedgerForked History = "LedgerForked"
)

// LostHistory reports whether a reason of a quarantine is one of a server that has lost history.
func LostHistory(reason string) bool {
	return reason == string(LedgerBehind) || reason == string(LedgerForked)
}

// MessageRestored is the message of the condition Scheduled of a restored instance whose new
// placeholder pod has no name yet.
const MessageRestored = "the instance was restored and may need a new placeholder pod"

// JudgeHistory compares the chain that ends with head with the record that a Mac has seen. The
// function stored returns the hash of the record with the sequence number of seen, or an empty
// string if the record has expired; it is called only for records before the head. A record that is
// missing has a hash that no record has.
func JudgeHistory(seen, head ChainPosition, stored func() (string, error)) (History, error) {
	switch {
	case seen.Sequence == 0:
		return HistoryIntact, nil
	case seen.Sequence > head.Sequence:
		return LedgerBehind, nil
	case seen.Sequence == head.Sequence && seen.Hash != head.Hash:
		return LedgerForked, nil
	case seen.Sequence == head.Sequence:
		return HistoryIntact, nil
	}
	hash, err := stored()
	if err != nil {
		return "", err
	}
	if hash != "" && hash != seen.Hash {
		return LedgerForked, nil
	}
	return HistoryIntact, nil
}

// WitnessFacts are the facts about the history of the server that the agent of a Mac knows.
type WitnessFacts struct {
	// Seen is the record that the agent has kept on its disk.
	Seen ChainPosition
	// Head is the end of the chain, and Reported the record that the agent has reported, in the
	// same version of the MacNode. Both are zero if the server does not have the MacNode.
	Head, Reported ChainPosition
	// Accepted is the record whose loss an administrator has accepted, if any.
	Accepted ChainPosition
	// Lost: the Mac is in quarantine for lost history.
	Lost bool
}

// Confirmed reports whether the server has the history that the agent knows. The server compares
// each reported record with its chain. So a MacNode with the agent's own record, and without a
// quarantine for lost history, proves that the chain up to its head continues the record.
//
// Without a confirmation, the agent moves its witness to no other record. It stops a virtual
// machine only on an explicit request for its instance, and erases nothing: a missing lease,
// instance or pod may be a loss of the server.
func (f WitnessFacts) Confirmed() bool {
	if f.Seen.Sequence == 0 {
		return true
	}
	lacks := f.Head.Sequence < f.Seen.Sequence || f.Head.Sequence == f.Seen.Sequence && f.Head != f.Seen
	return f.Reported == f.Seen && !f.Lost && (!lacks || f.Accepted == f.Seen)
}

// Advances reports whether the agent keeps the head of the chain as its witness.
func (f WitnessFacts) Advances() bool {
	return f.Confirmed() && f.Head.Sequence > 0 && f.Head != f.Seen
}

// Describe names the records that a server has lost.
func (h History) Describe(serialNumber string, seen, head ChainPosition) string {
	switch h {
	case LedgerBehind:
		return fmt.Sprintf("Mac %s has seen record %d (%s) of its chain, and the chain of the server ends at record %d: %d records are missing; "+
			"restore the Mac with macrack-ledger restore", serialNumber, seen.Sequence, seen.Hash, head.Sequence, seen.Sequence-head.Sequence)
	case LedgerForked:
		return fmt.Sprintf("Mac %s has seen another record %d of its chain (%s) than the server has: at least that record is missing; "+
			"restore the Mac with macrack-ledger restore", serialNumber, seen.Sequence, seen.Hash)
	}
	return ""
}

// CheckWitnessedFloor refuses the binding and the floor of a lease that only the witness of a Mac
// has. The binding is in the lost history: not before the last record from before the loss, if the
// time of that is known, and not in the future.
func CheckWitnessedFloor(now, lastRecord, boundAt, floor time.Time) error {
	format := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch length := floor.Sub(boundAt); {
	case boundAt.After(now):
		return refuse(TwentyFourHours, "the Mac reports a lease that was bound in the future, at %s; inspect the Mac", format(boundAt))
	case boundAt.Before(lastRecord):
		return refuse(TwentyFourHours, "the Mac reports a lease that was bound at %s, but the server has its records until %s, and none of that lease; inspect the Mac",
			format(boundAt), format(lastRecord))
	case length < MinimumLeaseDuration:
		return refuse(TwentyFourHours, "the Mac reports a floor at %s for a lease that was bound at %s; inspect the Mac", format(floor), format(boundAt))
	case length > MaxLeaseDuration:
		return refuse(TwentyFourHours, "the Mac reports a floor at %s for a lease that was bound at %s, and a lease lasts at most %d hours; inspect the Mac",
			format(floor), format(boundAt), int64(MaxLeaseDuration.Hours()))
	}
	return nil
}

// CheckSupersedes refuses to end the lease that a server knows in favour of the lease that its Mac
// serves, which was bound at boundAt. The floor of the former must have passed, both by now and at
// the binding of the latter: the claim of a Mac ends no lease early.
func CheckSupersedes(now, floor, boundAt time.Time) error {
	if !FloorPassed(boundAt, floor) {
		return refuse(TwentyFourHours, "the Mac was bound to another lease at %s, before the floor at %s of the lease that the server knows; "+
			"inspect the Mac, because one of the two is wrong", boundAt.UTC().Format(time.RFC3339), floor.UTC().Format(time.RFC3339))
	}
	return CheckRelease(now, floor)
}
