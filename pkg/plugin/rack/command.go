package rack

import (
	"context"

	"github.com/spf13/cobra"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
	"macrack.io/macrack/pkg/plugin/terminal"
)

// NewCommand returns the command rack.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	var view cmdutil.View
	cmd := &cobra.Command{
		Use:   "rack",
		Short: "Draw the racks with their Macs",
		Long: `Draw each Mac in its site, rack and shelf, with its phase, its tenant and lease, its two slots, and the
time to the floor of the lease.

Users who may not list Macs see the Macs of their leases, without the location. With --namespace, the
picture has only the Macs of this tenant.`,
		Example: `  # Draw all Macs that you may see
  kubectl macrack rack

  # Keep the picture current
  kubectl macrack rack -w

  # Draw the Macs of one tenant
  kubectl macrack rack -n acme

  # Print the data, and select the Macs that are not available
  kubectl macrack rack -o json | jq '.macs[] | select(.phase != "Available")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := view.Validate(); err != nil {
				return err
			}
			return run(cmd.Context(), env, view)
		},
	}
	view.AddFlags(cmd)
	return cmd
}

func run(ctx context.Context, env *cmdutil.Env, view cmdutil.View) error {
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	tenant, namespaces := "", []string{metav1.NamespaceAll, clients.Namespace}
	if clients.Explicit {
		tenant, namespaces = clients.Namespace, []string{clients.Namespace}
	}
	reader := fleet.NewReader(env.Clock).WithMacs(clients).WithLeases(clients, namespaces...)
	if view.Watch {
		return view.Follow(env, func(show func([]string) error) error {
			return reader.Follow(ctx, func(s *fleet.Snapshot) error { return show(lines(s, tenant, env.Style())) })
		})
	}
	s, err := reader.Read(ctx)
	if err != nil {
		return cmdutil.Interrupted(ctx, err)
	}
	if view.Output != cmdutil.ForPeople {
		return view.Output.Print(env.Out, newPicture(s, tenant))
	}
	return cmdutil.Print(env.Out, lines(s, tenant, env.Style()))
}

func lines(s *fleet.Snapshot, tenant string, style terminal.Style) []string {
	p := newPicture(s, tenant)
	return append(draw(p, s.Now, style), cmdutil.NoticeLines(p.Notices, s.Problem, style)...)
}
