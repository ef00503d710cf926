//go:build !faults

package race

func applyFaults() {}
