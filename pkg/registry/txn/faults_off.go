//go:build !faults

package txn

import "context"

// A build without the tag "faults" injects no faults.

func faultSkipCompare() bool                          { return false }
func faultBeforeCommit(context.Context, string) error { return nil }
func faultAfterCommit(context.Context, string) error  { return nil }
