//go:build !testclock

package main

import (
	"context"

	"k8s.io/utils/clock"
)

// newClock returns the clock of all decisions.
func newClock(context.Context) clock.Clock { return clock.RealClock{} }
