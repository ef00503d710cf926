// Package usage is the command that shows usage reports to people.
package usage

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

// windows are the names that completion offers; any other window works too.
var windows = []string{"today", "7d", "30d", "month"}

type options struct {
	window string
	// all: the reports of all tenants.
	all bool
	// leases: each lease on a line.
	leases bool
	output cmdutil.Output
}

// NewCommand returns the command usage.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "usage [WINDOW]",
		Short: "Show the billable use of Macs",
		Long: `Show the billable use of Macs by the leases of a namespace, or of all tenants. The billed unit is one
Mac for 24 hours, with two virtual machines included.

WINDOW is today, month (the current one), a month such as 2026-11, a duration up to now such as 7d, or
two dates. Dates are those of UTC. Without WINDOW, the usual windows are shown.

DAYS are billed periods of 24 hours, counted from the binding of each lease. TIME is the time for which
leases had a Mac. HELD is the part of it between the deletion of a lease and its floor.`,
		Example: `  # Show the use in the usual windows
  kubectl macrack usage

  # Show the use in November by class and SKU, with a line for each lease
  kubectl macrack usage 2026-11 --leases

  # Show the use by all tenants in the current month
  kubectl macrack usage month -A

  # Print the records that prove each lease
  kubectl macrack usage 2026-11-15..2026-12-01 -o json | jq -r '.status.leases[] | .name + " " + .records[]'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeWindow,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.window = args[0]
			}
			if o.leases && o.window == "" {
				return errors.New("--leases needs a window; add one, for example: kubectl macrack usage month --leases")
			}
			return cmdutil.Interrupted(cmd.Context(), run(cmd.Context(), env, o))
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.all, "all-namespaces", "A", false, "Show the use by all tenants.")
	flags.BoolVar(&o.leases, "leases", false, "Show each lease of the window.")
	o.output.AddFlag(flags)
	return cmd
}

func completeWindow(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return windows, cobra.ShellCompDirectiveNoFileComp
}

func run(ctx context.Context, env *cmdutil.Env, o options) error {
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	if o.window != "" && !o.all {
		report, err := get(ctx, clients, o.window)
		if err != nil {
			return err
		}
		if o.output != cmdutil.ForPeople {
			report.SetGroupVersionKind(rackv1alpha1.SchemeGroupVersion.WithKind("UsageReport"))
			return o.output.Print(env.Out, report)
		}
		return cmdutil.Print(env.Out, drawWindow([]rackv1alpha1.UsageReport{*report}, o, env.Style()))
	}
	list, err := list(ctx, clients, o)
	if err != nil {
		return err
	}
	switch {
	case o.output != cmdutil.ForPeople:
		list.SetGroupVersionKind(rackv1alpha1.SchemeGroupVersion.WithKind("UsageReportList"))
		return o.output.Print(env.Out, list)
	case o.window != "":
		return cmdutil.Print(env.Out, drawWindow(list.Items, o, env.Style()))
	}
	return cmdutil.Print(env.Out, drawList(list.Items, o.all, env.Style()))
}

// get returns the report on a window of the current namespace.
func get(ctx context.Context, clients *cmdutil.Clients, window string) (*rackv1alpha1.UsageReport, error) {
	report, err := clients.MacRack.RackV1alpha1().UsageReports(clients.Namespace).Get(ctx, window, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, fleet.UsageReports.In(clients.Namespace).Explain("get", err)
	case err != nil:
		return nil, fmt.Errorf("failed to read the report: %w", err)
	}
	return report, nil
}

// list returns the reports on the usual windows, or those of all tenants on one window.
func list(ctx context.Context, clients *cmdutil.Clients, o options) (*rackv1alpha1.UsageReportList, error) {
	namespace, opts := clients.Namespace, metav1.ListOptions{}
	if o.all {
		namespace = metav1.NamespaceAll
	}
	if o.window != "" {
		opts.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.window).String()
	}
	list, err := clients.MacRack.RackV1alpha1().UsageReports(namespace).List(ctx, opts)
	if err != nil {
		return nil, fleet.UsageReports.In(namespace).Explain("list", err)
	}
	if o.window != "" && len(list.Items) == 0 {
		// A list is also empty if the name is not a window. Only a single report is then an error.
		_, err = get(ctx, clients, o.window)
	}
	return list, err
}
