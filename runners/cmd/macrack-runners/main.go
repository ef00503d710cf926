// Command macrack-runners runs CI jobs on leased Macs.
package main

import (
	"os"

	"github.com/spf13/cobra"
)

func main() {
	if newCommand().Execute() != nil {
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "macrack-runners",
		Short:        "Run CI jobs on leased Macs",
		SilenceUsage: true,
	}
	cmd.AddCommand(newSimulateCommand())
	return cmd
}
