package leases

import (
	"context"

	"github.com/spf13/cobra"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
	"macrack.io/macrack/pkg/plugin/terminal"
)

// NewCommand returns the command leases.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	var view cmdutil.View
	all := false
	cmd := &cobra.Command{
		Use:   "leases",
		Short: "Draw the leases as a timeline",
		Long: `Draw each lease as a bar from its binding to its floor, with the part for which it is Held, its expiry
and the current time. The timeline reaches at most seven days back and ahead.`,
		Example: `  # Draw the leases of the current namespace
  kubectl macrack leases

  # Draw the leases of all tenants, and keep the picture current
  kubectl macrack leases -A -w

  # Print the floor of each lease
  kubectl macrack leases -o json | jq -r '.leases[] | .name + " " + .earliestReleaseAt'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := view.Validate(); err != nil {
				return err
			}
			return run(cmd.Context(), env, view, all)
		},
	}
	view.AddFlags(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Draw the leases of all namespaces.")
	return cmd
}

func run(ctx context.Context, env *cmdutil.Env, view cmdutil.View, all bool) error {
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	namespaces := []string{clients.Namespace}
	if all {
		namespaces = []string{metav1.NamespaceAll, clients.Namespace}
	}
	reader := fleet.NewReader(env.Clock).WithLeases(clients, namespaces...)
	if view.Watch {
		return view.Follow(env, func(show func([]string) error) error {
			return reader.Follow(ctx, func(s *fleet.Snapshot) error { return show(lines(s, all, env.Style())) })
		})
	}
	s, err := reader.Read(ctx)
	if err != nil {
		return cmdutil.Interrupted(ctx, err)
	}
	if view.Output != cmdutil.ForPeople {
		return view.Output.Print(env.Out, newTimeline(s))
	}
	return cmdutil.Print(env.Out, lines(s, all, env.Style()))
}

func lines(s *fleet.Snapshot, all bool, style terminal.Style) []string {
	t := newTimeline(s)
	notices := cmdutil.NoticeLines(t.Notices, s.Problem, style)
	if len(t.Leases) == 0 && len(t.Notices) > 0 {
		return notices[1:]
	}
	return append(draw(t, s.Now, all, style), notices...)
}
