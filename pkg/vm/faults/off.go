//go:build !faults

package faults

import "k8s.io/utils/clock"

// At is a place at which a process may end.
func At(string) {}

// Write returns the error of writing to path, if it is to fail.
func Write(string) error { return nil }

// Undoable remembers what is at path, which is about to be replaced or removed.
func Undoable(string) {}

// Durable forgets what was remembered in dir: its names are on the disk.
func Durable(string) {}

// Clock is the clock of the programs on a Mac.
func Clock() clock.WithTicker { return clock.RealClock{} }
