//go:build !darwin

package host

import (
	"fmt"
	"runtime"
)

// New returns an error: this system is not a Mac.
func New(string) (Host, error) {
	return nil, fmt.Errorf("%s/%s is not a Mac; use --backend=sim", runtime.GOOS, runtime.GOARCH)
}
