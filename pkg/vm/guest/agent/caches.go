package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// CachesVariable is the variable of the startup script with the directory of the caches.
	CachesVariable = "MACRACK_CACHES"
	// mountTimeout is how long the system may take to mount the directories that the host shares.
	mountTimeout = 30 * time.Second
	mountPoll    = 200 * time.Millisecond
)

// Caches is the place of the lease's caches in the guest.
type Caches struct {
	// Dir is the directory that scripts use. It has a directory for each cache.
	Dir string
	// Source is the directory in which the system mounts them, and Dir is a symbolic link to it.
	// Without Source, Dir exists already.
	Source string
}

// prepare makes the caches available in their directory, and returns the variables of the startup
// script. A failure does not end the setup: the script finds no caches, as in a new lease.
func (c *Caches) prepare(ctx context.Context, clk clock.Clock, output io.Writer) []string {
	if c == nil {
		fmt.Fprintln(output, "macrack-guest-agent: this guest cannot use caches")
		return nil
	}
	if err := c.link(ctx, clk); err != nil {
		klog.ErrorS(err, "Failed to make the caches available")
		fmt.Fprintf(output, "macrack-guest-agent: the caches are not available: %v\n", err)
		return nil
	}
	return []string{CachesVariable + "=" + c.Dir}
}

// link waits until the system has mounted the shared directories, and links them.
func (c *Caches) link(ctx context.Context, clk clock.Clock) error {
	if c.Source == "" {
		return nil
	}
	for until := clk.Now().Add(mountTimeout); ; {
		_, err := os.Stat(c.Source)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || !clk.Now().Before(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-clk.After(mountPoll):
		}
	}
	if target, err := os.Readlink(c.Dir); err == nil && target == c.Source {
		return nil
	}
	if err := os.Remove(c.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(c.Source, c.Dir)
}
