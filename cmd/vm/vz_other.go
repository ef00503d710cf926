//go:build !(darwin && arm64 && cgo)

package main

import "errors"

func newVZ() (*hypervisor, error) {
	return nil, errors.New("--backend=vz needs a macrack-vm that was built on an Apple silicon Mac with cgo; this one knows only --backend=sim")
}
