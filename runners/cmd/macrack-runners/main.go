// Command macrack-runners runs CI jobs on leased Macs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"macrack.io/macrack/runners/pkg/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newCommand().ExecuteContext(ctx)
	var exit exitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.code)
	case err != nil:
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var (
		o     = runOptions{election: defaultElection}
		check bool
	)
	cmd := &cobra.Command{
		Use:          "macrack-runners --config FILE",
		Short:        "Run CI jobs on leased Macs",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		Version:      fmt.Sprintf("%s (commit %s)", version, commit),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !check {
				return o.run(cmd.Context())
			}
			config, err := config.Load(o.file)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %d sets\n", o.file, len(config.Sets))
			return nil
		},
	}
	cmd.Flags().StringVar(&o.file, "config", "", "The file with the RunnersConfiguration. It is read again when it changes.")
	cmd.Flags().BoolVar(&check, "check", false, "Check the configuration and exit.")
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "The kubeconfig. By default, that of the environment or of the pod.")
	cmd.Flags().StringVar(&o.namespace, "namespace", "", "The namespace of the leases. By default, that of the kubeconfig.")
	cmd.Flags().StringVar(&o.bindAddress, "bind-address", ":8080", "The address of /metrics and /healthz; empty for none.")
	_ = cmd.MarkFlagRequired("config")
	cmd.AddCommand(newSimulateCommand(), newGitLabCommand())
	return cmd
}
