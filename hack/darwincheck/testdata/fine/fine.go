//go:build darwin && arm64 && cgo

// Package fine is for macOS alone, and has no mistake.
package fine

import "C"

// Length returns a number.
func Length() int { return int(C.strlen(nil)) }
