//go:build darwin && arm64 && cgo

// Package broken has a mistake that only the types show.
package broken

import "C"

// Length returns a text where it says a number.
func Length() int { return C.GoString(nil) + undefined }
