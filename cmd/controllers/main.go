// Command macrack-controllers binds, holds and releases leases, and does whatever else follows from them.
package main

import (
	"os"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"macrack.io/macrack/pkg/version"
)

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

func main() { os.Exit(cli.Run(newCommand())) }

func newCommand() *cobra.Command {
	options := newOptions()
	logging := logs.NewOptions()
	cmd := &cobra.Command{
		Use:   "macrack-controllers",
		Short: "Run the controllers of MacRack",
		Long: `The controllers of MacRack. They bind leases to free Macs, say why a lease waits, hold and release leases,
keep the taints of Nodes in step with them, make placeholder pods for instances, and tell which Macs are heard of.
Several may run; one of them leads and the others wait. Each decision is checked by macrack-apiserver.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		Version:      version.String(),
		RunE: func(*cobra.Command, []string) error {
			if err := logsapi.ValidateAndApply(logging, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			if err := options.validate(); err != nil {
				return err
			}
			return run(genericapiserver.SetupSignalContext(), options)
		},
	}
	options.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}
