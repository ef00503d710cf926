//go:build darwin && arm64 && cgo

// Package fine is only for macOS and has no errors.
package fine

import "C"

// Length returns a number.
func Length() int { return int(C.strlen(nil)) }
