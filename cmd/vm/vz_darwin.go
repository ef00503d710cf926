//go:build darwin && arm64 && cgo

package main

import (
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/vz"
)

func newVZ() (*hypervisor, error) {
	return &hypervisor{Backend: &vz.Backend{Clock: clock.RealClock{}}, newMachineID: vz.NewMachineID}, nil
}
