//go:build !linux

package sim

func sweep(string) {} // commands are refused
