// Chaos injects faults at every fault point of the agent and the runners. After each fault it
// checks that nothing was lost or duplicated, and that a third virtual machine never ran. Its last
// line is chaos: faults=N survived=N/N violations=N. It runs its own binary as the agents'
// processes, and is built with the tag "faults".
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"macrack.io/macrack/test/chaos"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	opts := chaos.Options{Out: os.Stdout}
	short := false
	cmd := &cobra.Command{
		Use:           "chaos",
		Short:         "Inject faults at every fault point, and check that nothing was lost or duplicated",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if short {
				opts.Sizes = chaos.Short
			} else {
				opts.Sizes = chaos.Long
			}
			return chaos.Run(cmd.Context(), opts)
		},
	}
	cmd.Flags().BoolVar(&short, "short", false, "a few faults of each family")
	cmd.Flags().StringSliceVar(&opts.Families, "families", nil, "families of faults to run (default: all)")
	cmd.Flags().StringVar(&opts.Place, "place", "", "part of the names of the fault points to try in the family places (default: all)")
	cmd.Flags().IntVar(&opts.OnlyCycles, "cycles", 0, "start/stop cycles of slots (default: 10000, or 200)")
	cmd.Flags().StringVar(&opts.Keep, "keep", "", "folder for the logs of all processes if there are violations")

	agent := chaos.AgentOptions{}
	run := &cobra.Command{
		Use: "agent", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return chaos.RunAgent(cmd.Context(), agent) },
	}
	run.Flags().StringVar(&agent.NodeName, "node-name", "", "")
	run.Flags().StringVar(&agent.Kubeconfig, "kubeconfig", "", "")
	run.Flags().StringVar(&agent.StateDir, "state-dir", "", "")
	run.Flags().StringVar(&agent.HostDir, "host-dir", "", "")
	run.Flags().StringVar(&agent.VMBinary, "vm-binary", "", "")
	hijack := &cobra.Command{
		Use: "hijack SOCKET UID", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return chaos.Hijack(cmd.Context(), args[0], args[1]) },
	}
	cmd.AddCommand(run, hijack)
	return cmd
}
