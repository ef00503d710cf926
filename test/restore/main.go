// Restore runs a Kubernetes control plane and macrack with an adjustable clock, loses the etcd of
// macrack twice while virtual machines run, and restores it: from a backup, and from nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"macrack.io/macrack/test/testbed"
)

func main() {
	ledger := flag.String("macrack-ledger", ".dev/bin/macrack-ledger", "path of macrack-ledger")
	dir := flag.String("dir", "", "folder of the state; a temporary one if empty")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *ledger); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, ledger string) (err error) {
	tb, err := testbed.Start(ctx, testbed.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.Stop()) }()
	s := &story{tb: tb, ledger: ledger}
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("%w (see %s)", err, tb.Log)
	}
	fmt.Printf("restore: leases=%d recovered=%d early=%d killed=%d lost_records=%d reported=%d\n",
		s.leases, s.recovered, s.early, s.killed, s.lost, s.reported)
	if s.leases == 0 || s.recovered != s.leases || s.early > 0 || s.killed > 0 || s.lost == 0 || s.reported != s.lost {
		return errors.New("not everything was recovered, or the loss was not reported")
	}
	return nil
}
