// Command macrack-apiserver serves the macrack.io API.
package main

import (
	"context"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/component-base/metrics/legacyregistry"

	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/version"
)

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// heapReserve is added to the heap in the calculation of when to collect garbage. The heap of a
// small fleet is small, so that the default would spend a fifth of the CPU time on collections
// under many writes. A higher GOGC would have the same effect, but would triple the memory of a
// large fleet. The reserve is never touched, so it takes no memory.
const heapReserve = 128 << 20

func main() {
	reserve := make([]byte, heapReserve)
	code := cli.Run(newCommand(genericapiserver.SetupSignalContext()))
	runtime.KeepAlive(reserve)
	os.Exit(code)
}

func newCommand(ctx context.Context) *cobra.Command {
	options := apiserver.NewOptions()
	logging := logs.NewOptions()
	cmd := &cobra.Command{
		Use:   "macrack-apiserver",
		Short: "Serve the macrack.io API",
		Long: `The MacRack API server. It serves leases of whole Macs and the virtual machines in them, and enforces
the three rules: two virtual machines on a Mac, one tenant, at least 24 hours.
It is an aggregated API server behind kube-apiserver, and stores its objects in its own etcd.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		Version:      version.String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			if err := options.Validate(); err != nil {
				return err
			}
			config, err := options.Config()
			if err != nil {
				return err
			}
			legacyregistry.CustomMustRegister(options.CertificateMetrics())
			server, err := config.New()
			if err != nil {
				return err
			}
			return server.Generic.PrepareRun().RunWithContext(ctx)
		},
	}
	options.AddFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	utilfeature.DefaultMutableFeatureGate.AddFlag(cmd.Flags())
	return cmd
}
