// Load floods the API as one tenant, and measures another tenant's work meanwhile. The control
// plane, three simulated Macs and the flood share one machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster"
)

const (
	floodCommand = "flood"

	flooder = "acme"
	victim  = "globex"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == floodCommand {
		err = runFlood(ctx, os.Args[2:])
	} else {
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	quiet := flag.Duration("quiet", 2*time.Minute, "the time without a flood")
	flooded := flag.Duration("flooded", 10*time.Minute, "the time with the flood")
	flag.Parse()
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: 2, Controllers: 2, Macs: 3, Example: true, Keep: true,
		ExtraArgs: map[string][]string{"macrack-apiserver": {"--user-qps=20"}}}) // the default; other tests have no limit
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	v, err := newTenant(ctx, c)
	if err != nil {
		return err
	}
	o, err := observe(ctx, c)
	if err != nil {
		return err
	}
	if err := v.warmUp(ctx); err != nil {
		return err
	}
	before, err := v.work(ctx, *quiet)
	if err != nil {
		return fmt.Errorf("without a flood: %w", err)
	}
	o.reset()
	stopFlood, err := startFlood(ctx, c)
	if err != nil {
		return err
	}
	during, err := v.work(ctx, *flooded)
	sent, floodErr := stopFlood()
	if err := errors.Join(err, floodErr); err != nil {
		return fmt.Errorf("during the flood: %w", err)
	}
	return report(os.Stdout, before, during, sent, o)
}
