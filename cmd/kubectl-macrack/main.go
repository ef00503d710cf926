// Command kubectl-macrack is a plugin of kubectl that shows Macs, leases and instances to people.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/plugin"
	"macrack.io/macrack/pkg/plugin/cmdutil"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	env := cmdutil.NewEnv(streams, clock.RealClock{}, os.Getenv)
	code, message := cmdutil.ExitCode(plugin.NewCommand(env).ExecuteContext(ctx))
	if message != "" {
		fmt.Fprintf(os.Stderr, "Error: %s\n", message)
	}
	return code
}
