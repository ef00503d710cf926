// Failover kills, stops and restarts components of the control plane, and measures how long clients
// notice it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster"
)

const (
	replicas = 2
	members  = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	tries := flag.Int("tries", 20, "how often each fault happens")
	only := flag.String("only", "", "only the faults whose names contain this")
	flag.Parse()
	if err := errors.Join(checkFilter(ctx), detectSilence()); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: replicas, Controllers: replicas, EtcdMembers: members, Example: true, Sync: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	clients, err := c.Clients(cluster.Admin)
	if err != nil {
		return err
	}
	prober, err := newProber(ctx, clients.MacRack)
	if err != nil {
		return err
	}
	var results []result
	for _, f := range faults(c) {
		if !strings.Contains(f.name, *only) {
			continue
		}
		result := result{fault: f}
		for try := range *tries {
			outage, err := f.measure(ctx, prober, try)
			if err != nil {
				return fmt.Errorf("%s, try %d: %w", f.name, try+1, err)
			}
			result.outages = append(result.outages, outage)
			fmt.Fprintf(os.Stderr, "%s, try %d: %s, %d failed of %d\n", f.name, try+1, outage.lasted.Round(time.Millisecond), outage.failed, outage.sent)
		}
		results = append(results, result)
	}
	return report(os.Stdout, results, prober.lost)
}

// detectSilence makes HTTP/2 clients notice within two seconds that a server no longer answers, as
// docs/load.md recommends for kube-apiserver. The default is 45 seconds.
func detectSilence() error {
	return errors.Join(os.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1"), os.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1"))
}
