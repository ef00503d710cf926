// Command macrack-ledger exports the records of what was done with every Mac, and checks an export without a server.
package main

import (
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/utils/clock"
)

func main() {
	// Records are garbage once they are counted, and little else is in memory: collecting seldom costs some tens of MB.
	debug.SetGCPercent(400)
	os.Exit(cli.Run(newCommand(clock.RealClock{})))
}

func newCommand(clock clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "macrack-ledger",
		Short: "Export and verify the ledger of MacRack",
		Long: `The ledger of MacRack, away from its server. It is exported once, and then anybody who has the file can verify
that no record of a Mac is missing, edited, forked or out of order, and report on any window of time whether
the three rules held: two virtual machines on a Mac, one tenant, 24 hours at least.`,
		SilenceUsage: true,
	}
	cmd.AddCommand(newExportCommand(), newVerifyCommand(clock), newReportCommand(clock))
	return cmd
}
