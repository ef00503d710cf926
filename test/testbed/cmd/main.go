// Testbed runs a Kubernetes control plane and macrack with an adjustable clock, in the foreground
// until it is interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/process"

	"github.com/spf13/cobra"

	"macrack.io/macrack/test/testbed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	opts := testbed.Options{}
	port := 0
	cmd := &cobra.Command{
		Use:           "testbed",
		Short:         "Run macrack with a clock that can be put forward",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), opts, port) },
	}
	cmd.Flags().IntVar(&opts.Macs, "macs", 3, "simulated Macs")
	cmd.Flags().StringVar(&opts.Dir, "dir", "", "folder of the state; a temporary one if empty")
	cmd.Flags().IntVar(&port, "clock-port", 0, "loopback port of the clock; a free one if 0")
	return cmd
}

func run(ctx context.Context, opts testbed.Options, port int) (err error) {
	listener, err := process.Listen(port)
	if err != nil {
		return err
	}
	defer listener.Close()
	tb, err := testbed.Start(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.Stop()) }()

	server := &http.Server{Handler: tb.ClockHandler(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	clock := "http://" + listener.Addr().String()
	fmt.Fprintf(os.Stderr, `
  curl %[1]s/clock                              # what time it is for macrack
  curl -X POST '%[1]s/clock/advance?d=24h'      # puts its clock forward
  log of macrack: %[2]s
  kubectl: %[3]s/kubectl; contexts admin, acme, globex, direct, direct-acme, direct-globex

`, clock, tb.Log, tb.Cluster.Bin())
	fmt.Printf("KUBECONFIG=%s CLOCK=%s\n", tb.Kubeconfig, clock)

	select {
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "stopping")
		return server.Close()
	case err := <-served:
		return err
	case <-tb.Failed():
		return tb.Err()
	}
}
