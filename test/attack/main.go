// Attack tests a running cluster with real credentials. Tenants, administrators, agents, the
// controllers and strangers try to break the three rules, to reach each other's objects, and to
// change the ledger. Each attempt must be refused with a message, change no stored object, and be
// recorded where required. Legitimate uses must still work.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"macrack.io/macrack/test/cluster"
)

func main() {
	own := flag.Bool("own", false, "start a separate cluster for the attack, and stop it at the end")
	family := flag.String("family", "", "make the attempts of this family only")
	verbose := flag.Bool("verbose", false, "print every answer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *own, *family, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, own bool, family string, verbose bool) (err error) {
	c, err := open(ctx, own)
	if err != nil {
		return err
	}
	w, err := prepare(ctx, c)
	if errors.Is(err, errNoFreeMac) && !own {
		fmt.Fprintf(out, "%v: starting a separate cluster for the attack\n", err)
		own = true
		if c, err = open(ctx, own); err == nil {
			w, err = prepare(ctx, c)
		}
	}
	if own && c != nil {
		defer func() { err = errors.Join(err, c.Stop()) }()
	}
	if err != nil {
		return err
	}
	defer w.close()
	r := &report{out: out, family: family, verbose: verbose}
	if err := w.attack(ctx, r); err != nil {
		return err
	}
	return errors.Join(r.end(), ctx.Err())
}

// open starts the dev cluster, or a separate one.
func open(ctx context.Context, own bool) (*cluster.Cluster, error) {
	if own {
		return cluster.Start(ctx, cluster.Options{Apiservers: 2, Controllers: 1, Macs: 3, Example: true})
	}
	root, err := cluster.RepoRoot()
	if err != nil {
		return nil, err
	}
	up := exec.CommandContext(ctx, "go", "run", "./hack/dev", "up")
	up.Dir, up.Stdout, up.Stderr = root, os.Stderr, os.Stderr
	up.Cancel = func() error { return up.Process.Signal(os.Interrupt) }
	if err := up.Run(); err != nil {
		return nil, fmt.Errorf("hack/dev up: %w", err)
	}
	return cluster.Reopen(filepath.Join(root, ".dev"), os.Stderr)
}
