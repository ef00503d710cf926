//go:build !faults

package faults

import "k8s.io/utils/clock"

// At is a point at which a test may kill the process.
func At(string) {}

// Write returns the injected error of a write to path, or nil.
func Write(string) error { return nil }

// Undoable saves path, which is about to be replaced or removed.
func Undoable(string) {}

// Durable discards the saved state of dir, whose entries are now on disk.
func Durable(string) {}

// Clock returns the clock of the programs on a Mac.
func Clock() clock.WithTicker { return clock.RealClock{} }
