package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"macrack.io/macrack/test/cluster/build"
)

// ErrNoFreeMac means that a suite needs more free Macs than the dev cluster has.
var ErrNoFreeMac = errors.New("more free Macs are needed")

// StartDev starts the dev cluster, or the components of it that do not run.
func StartDev(ctx context.Context) (*Cluster, error) {
	root, err := build.Root()
	if err != nil {
		return nil, err
	}
	up := exec.CommandContext(ctx, "go", "run", "./hack/dev", "up")
	up.Dir, up.Stdout, up.Stderr = root, os.Stderr, os.Stderr
	up.Cancel = func() error { return up.Process.Signal(os.Interrupt) }
	if err := up.Run(); err != nil {
		return nil, fmt.Errorf("hack/dev up: %w", err)
	}
	return ReopenDev()
}

// ReopenDev is Reopen for the dev cluster.
func ReopenDev() (*Cluster, error) {
	root, err := build.Root()
	if err != nil {
		return nil, err
	}
	return Reopen(filepath.Join(root, ".dev"), os.Stderr)
}

// RunSuite prepares the world of a suite, on the dev cluster that dev returns or on a separate one,
// and runs it. If prepare returns ErrNoFreeMac, the separate cluster replaces the dev cluster.
func RunSuite[World any](ctx context.Context, out io.Writer, own bool, options Options, dev func(context.Context) (*Cluster, error),
	prepare func(context.Context, *Cluster) (World, error), run func(World) error) (err error) {
	if !own {
		c, err := dev(ctx)
		if err != nil {
			return err
		}
		w, err := prepare(ctx, c)
		if err == nil {
			return run(w)
		}
		if !errors.Is(err, ErrNoFreeMac) {
			return err
		}
		fmt.Fprintf(out, "%v: starting a separate cluster\n", err)
	}
	c, err := Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	w, err := prepare(ctx, c)
	if err != nil {
		return err
	}
	return run(w)
}
