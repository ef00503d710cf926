// Command macrack-runners runs CI jobs on leased Macs.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"macrack.io/macrack/runners/pkg/config"
)

func main() {
	if newCommand().Execute() != nil {
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var (
		file  string
		check bool
	)
	cmd := &cobra.Command{
		Use:          "macrack-runners --config FILE --check",
		Short:        "Run CI jobs on leased Macs",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !check {
				return errors.New("running sets is not implemented yet; use --check or simulate")
			}
			config, err := config.Load(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %d sets\n", file, len(config.Sets))
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "The file with the RunnersConfiguration.")
	cmd.Flags().BoolVar(&check, "check", false, "Check the configuration and exit.")
	_ = cmd.MarkFlagRequired("config")
	cmd.AddCommand(newSimulateCommand())
	return cmd
}
