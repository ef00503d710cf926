// Package plugin is kubectl macrack, the plugin of kubectl for people. It is a client with the
// rights of its user.
package plugin

import (
	"github.com/spf13/cobra"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/compliance"
	"macrack.io/macrack/pkg/plugin/connect"
	"macrack.io/macrack/pkg/plugin/console"
	"macrack.io/macrack/pkg/plugin/leases"
	"macrack.io/macrack/pkg/plugin/rack"
	"macrack.io/macrack/pkg/plugin/run"
	"macrack.io/macrack/pkg/plugin/usage"
	"macrack.io/macrack/pkg/plugin/why"
	"macrack.io/macrack/pkg/version"
)

// NewCommand returns the command kubectl macrack.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl-macrack",
		Short: "See and use leased Macs",
		Long: `kubectl macrack shows the Macs, leases and instances of MacRack to people, explains what they wait for,
and opens virtual machines.

It uses your kubeconfig and your rights: it shows what you may see, and names what you may not see.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl macrack"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.String(),
	}
	cmd.SetVersionTemplate("kubectl-macrack version {{.Version}}\n")
	cmd.SetIn(env.In)
	cmd.SetOut(env.Out)
	cmd.SetErr(env.ErrOut)
	env.Flags.AddFlags(cmd.PersistentFlags())
	_ = cmd.RegisterFlagCompletionFunc("namespace", cmdutil.CompleteNames(env, "namespaces"))
	_ = cmd.RegisterFlagCompletionFunc("context", cmdutil.CompleteContexts(env))
	cmd.AddCommand(
		rack.NewCommand(env),
		leases.NewCommand(env),
		why.NewCommand(env),
		run.NewCommand(env),
		connect.NewSSHCommand(env),
		connect.NewCopyCommand(env),
		connect.NewVNCCommand(env),
		usage.NewCommand(env),
		compliance.NewCommand(env),
		console.NewCommand(env),
		newVersionCommand(env),
	)
	return cmd
}
