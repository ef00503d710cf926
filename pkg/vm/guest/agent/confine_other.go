//go:build !linux

package agent

import "errors"

// Confine is not possible here.
func Confine(string, ...string) error { return errors.New("confine commands: only Linux can") }
