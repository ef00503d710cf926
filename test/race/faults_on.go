//go:build faults

package race

import "macrack.io/macrack/pkg/registry/txn"

// applyFaults has the servers commit without comparing what the decision rests on, to see whether the checker
// sees it.
func applyFaults() { txn.Faults.SkipCompare = true }
