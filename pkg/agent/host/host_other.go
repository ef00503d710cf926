//go:build !darwin

package host

import (
	"fmt"
	"runtime"
)

// New returns the Mac that this process runs on, which this is not.
func New(string) (Host, error) {
	return nil, fmt.Errorf("%s/%s is not a Mac: use --backend=sim", runtime.GOOS, runtime.GOARCH)
}
