//go:build faults

package race

import "macrack.io/macrack/pkg/registry/txn"

// applyFaults makes the servers commit without comparing the inputs of their decisions, to prove
// that the checker detects it.
func applyFaults() { txn.Faults.SkipCompare = true }
