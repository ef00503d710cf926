//go:build faults

package txn

import "context"

// Faults are what tests have go wrong in transactions with companions. Set
// them before the server starts. They exist with the build tag "faults" only.
var Faults struct {
	// SkipCompare has transactions commit whatever has become of the
	// companions, as a check of what checks the invariants.
	SkipCompare bool

	// BeforeCommit and AfterCommit are called with the key of the main object
	// around a transaction. They may take their time, or end the process. An
	// error is returned in place of etcd's answer.
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
