// Command macrack-controllers runs the controllers of MacRack, which bind, hold and release leases.
package main

import (
	"os"

	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // for registries of images; the container image has no file of authorities
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
		Long: `The controllers of MacRack. They bind leases to free Macs, report why a lease is pending, and hold and release leases.
They also maintain the taints of Nodes, create placeholder pods for instances, and mark Macs online or offline.
Multiple replicas can run; one is the leader and the others stand by. macrack-apiserver checks each decision.`,
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
	cmd.AddCommand(newCertificatesCommand())
	return cmd
}
