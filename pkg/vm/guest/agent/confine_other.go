//go:build !linux

package agent

import "errors"

// Confine returns an error: it requires Linux.
func Confine(string, []string, []string) error { return errors.New("confine commands: requires Linux") }
