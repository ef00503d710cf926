//go:build faults

package txn

import "context"

// Faults are failures that tests inject into transactions with companions. They must be set before
// the server starts, and exist with the build tag "faults" only.
var Faults struct {
	// SkipCompare makes transactions commit even if companions have changed. It is for testing the
	// tests of the invariants.
	SkipCompare bool

	// BeforeCommit and AfterCommit are called with the key of the main object
	// around a transaction. They may delay or exit. An error replaces the answer of etcd.
	BeforeCommit, AfterCommit func(ctx context.Context, key string) error
}

func faultSkipCompare() bool { return Faults.SkipCompare }

func faultBeforeCommit(ctx context.Context, key string) error {
	if Faults.BeforeCommit == nil {
		return nil
	}
	return Faults.BeforeCommit(ctx, key)
}

func faultAfterCommit(ctx context.Context, key string) error {
	if Faults.AfterCommit == nil {
		return nil
	}
	return Faults.AfterCommit(ctx, key)
}
