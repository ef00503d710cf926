//go:build darwin && arm64 && cgo

// Package broken has an error that only type-checking finds.
package broken

import "C"

// Length returns a string instead of a number.
func Length() int { return C.GoString(nil) + undefined }
