//go:build !(darwin && arm64 && cgo)

package main

import "errors"

func newVZ() (*hypervisor, error) {
	return nil, errors.New("--backend=vz requires a macrack-vm built with cgo on an Apple silicon Mac; this build supports only --backend=sim")
}
