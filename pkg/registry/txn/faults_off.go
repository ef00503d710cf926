//go:build !faults

package txn

import "context"

// What is built without the tag "faults" has none.

func faultSkipCompare() bool                          { return false }
func faultBeforeCommit(context.Context, string) error { return nil }
func faultAfterCommit(context.Context, string) error  { return nil }
