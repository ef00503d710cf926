// Command macrack-ledger exports the audit records of every Mac, verifies an export offline, saves
// snapshots of etcd, and restores Macs after a loss of etcd.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // the container image has no file of authorities
	"k8s.io/component-base/cli"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/version"
)

func main() {
	// Records become garbage once they are counted, and little else is in memory. Rare collections
	// cost some tens of MB.
	debug.SetGCPercent(400)
	err := cli.RunNoErrOutput(newCommand(clock.RealClock{}))
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
	}
	os.Exit(exitCode(err))
}

// exitCode returns 0 for success, 1 for a broken ledger or lost data, and 2 for other errors.
func exitCode(err error) int {
	var v verdict
	switch {
	case err == nil:
		return 0
	case errors.As(err, &v):
		return 1
	}
	return 2
}

func newCommand(clock clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "macrack-ledger",
		Short: "Export and verify the ledger of MacRack, back up its etcd, and restore Macs after its loss",
		Long: `The ledger of MacRack, without its server. After one export, the file is sufficient to verify that no record
of a Mac is missing, edited, forked or out of order. It is also sufficient to report, for any period of time, whether
the three rules held: two virtual machines on a Mac, one tenant, at least 24 hours. It also has the billable use of Macs.`,
		SilenceUsage: true,
		Version:      version.String(),
	}
	cmd.AddCommand(newExportCommand(), newVerifyCommand(clock), newReportCommand(clock), newUsageCommand(clock), newSnapshotCommand(clock),
		newRestoreCommand())
	return cmd
}
