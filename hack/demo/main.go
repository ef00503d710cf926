// Demo demonstrates MacRack on the dev cluster with the commands that users type, and checks each
// response.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"macrack.io/macrack/test/cluster/build"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	root, err := build.Root()
	if err != nil {
		return err
	}
	if err := dev(ctx, root, "up"); err != nil {
		return err
	}
	t := &terminal{out: out, root: root, kubeconfig: filepath.Join(root, ".dev", "kubeconfig")}
	free, err := t.freeMacs(ctx)
	if err != nil {
		return err
	}
	if free == 0 {
		if err := t.startAfresh(ctx, root); err != nil {
			return err
		}
	}
	story(ctx, t)
	fmt.Fprintf(out, "\ndemo: %d steps, %d as expected\n", t.steps, t.asExpected)
	if t.steps != t.asExpected {
		return fmt.Errorf("%d of %d steps failed; they are marked with ✗, and the logs are in .dev/log", t.steps-t.asExpected, t.steps)
	}
	return ctx.Err()
}

// dev runs hack/dev.
func dev(ctx context.Context, root, command string) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./hack/dev", command)
	cmd.Dir = root
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("hack/dev %s: %w", command, err)
	}
	return nil
}

func (t *terminal) freeMacs(ctx context.Context) (int, error) {
	a := t.quietly(ctx, "", "--context", "admin", "get", "macnodes", "-o", `jsonpath={range .items[?(@.status.phase=="Available")]}{.metadata.name}{"\n"}{end}`)
	if a.failed {
		return 0, errors.New(strings.TrimSpace(a.stderr))
	}
	return len(strings.Fields(a.stdout)), nil
}

// startAfresh creates a new dev cluster if earlier demos have leased all Macs: a Mac stays with its
// lease for 24 hours, and there are three. It refuses if other leases exist.
func (t *terminal) startAfresh(ctx context.Context, root string) error {
	a := t.quietly(ctx, "", "--context", "admin", "get", "macnodeleases", "--all-namespaces", "--selector", "!"+demoLabel,
		"-o", `jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}`)
	if a.failed {
		return errors.New(strings.TrimSpace(a.stderr))
	}
	if others := strings.TrimSpace(a.stdout); others != "" {
		return fmt.Errorf("no Mac is free: each belongs to its lease for at least 24 hours (kubectl get macnodes). Leases exist that the demo did not create: %s. "+
			"Wait until a Mac is released, or delete the state of the dev cluster: make clean demo", others)
	}
	fmt.Fprintln(t.out, "\nNo Mac is free: earlier demos leased all of them, and each stays with its lease for 24 hours.")
	fmt.Fprintln(t.out, "Only the demo created leases in this cluster, so its state is deleted (make clean) and the cluster is started again.")
	if err := dev(ctx, root, "clean"); err != nil {
		return err
	}
	return dev(ctx, root, "up")
}
