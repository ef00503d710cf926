// Package compliance is the command that shows compliance reports to people.
package compliance

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

// windows are the names that completion offers; any other window works too.
var windows = []string{"24h", "7d", "30d", "90d"}

// NewCommand returns the command compliance.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	var output cmdutil.Output
	cmd := &cobra.Command{
		Use:   "compliance [WINDOW]",
		Short: "Show whether the three rules held",
		Long: `Show the verdict of the ledger on the three rules: two VMs per Mac, one tenant per Mac, at least 24 hours
per lease. Each violation is shown with the records that prove it.

WINDOW is a duration up to now, or two dates. Without it, the usual windows are shown, in a table: Macs,
leases and VM starts; the maximum of VMs on a Mac at once; overlaps of tenants; releases before the floor
(early); broken chains of records; requests that were refused for a rule.`,
		Example: `  # Show the verdicts of the usual windows
  kubectl macrack compliance

  # Show the report of a quarter, with its violations
  kubectl macrack compliance 2026-08-01..2026-11-01

  # Print the reports
  kubectl macrack compliance -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(windows, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			window := ""
			if len(args) > 0 {
				window = args[0]
			}
			return cmdutil.Interrupted(cmd.Context(), run(cmd.Context(), env, output, window))
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}

func run(ctx context.Context, env *cmdutil.Env, output cmdutil.Output, window string) error {
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	client := clients.MacRack.RackV1alpha1().ComplianceReports()
	if window == "" {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fleet.ComplianceReports.Explain("list", err)
		}
		if output != cmdutil.ForPeople {
			list.SetGroupVersionKind(rackv1alpha1.SchemeGroupVersion.WithKind("ComplianceReportList"))
			return output.Print(env.Out, list)
		}
		return cmdutil.Print(env.Out, drawList(list.Items, env.Style()))
	}
	report, err := client.Get(ctx, window, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return fleet.ComplianceReports.Explain("get", err)
	}
	if err != nil {
		return fmt.Errorf("failed to read the report: %w", err)
	}
	if output != cmdutil.ForPeople {
		report.SetGroupVersionKind(rackv1alpha1.SchemeGroupVersion.WithKind("ComplianceReport"))
		return output.Print(env.Out, report)
	}
	return cmdutil.Print(env.Out, drawReport(report, env.Style()))
}
