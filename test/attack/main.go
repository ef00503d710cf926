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
	"os/signal"
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

func run(ctx context.Context, out io.Writer, own bool, family string, verbose bool) error {
	options := cluster.Options{Apiservers: 2, Controllers: 1, Macs: 3, Example: true}
	return cluster.RunSuite(ctx, out, own, options, cluster.StartDev, prepare, func(w *world) error {
		defer w.close()
		r := &report{out: out, family: family, verbose: verbose}
		if err := w.attack(ctx, r); err != nil {
			return err
		}
		return errors.Join(r.end(), ctx.Err())
	})
}
