//go:build !linux

package sim

func sweep(string) {} // no commands run on this system
