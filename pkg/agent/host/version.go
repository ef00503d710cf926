package host

import (
	"errors"
	"fmt"
	"strings"
)

// productVersion returns the version of macOS. It asks sw_vers, because macOS 26 and later report
// 16.x as kern.osproductversion to programs built with an old SDK, such as Go programs without cgo.
func productVersion(run func(name string, args ...string) ([]byte, error)) (string, error) {
	out, err := run("/usr/bin/sw_vers", "-productVersion")
	if err != nil {
		return "", fmt.Errorf("sw_vers: %w", err)
	}
	version := strings.TrimSpace(string(out))
	if version == "" {
		return "", errors.New("sw_vers shows no version")
	}
	return version, nil
}
