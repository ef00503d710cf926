package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
)

type restoreOptions struct {
	kubeconfig string
	context    string
	dryRun     bool
}

func newRestoreCommand() *cobra.Command {
	options := &restoreOptions{}
	cmd := &cobra.Command{
		Use:   "restore [MAC...]",
		Short: "Restore leases and instances from the Macs, after a loss of etcd",
		Long: `Each Mac keeps the last record of its chain that it has seen, and the lease and the instances that it serves. A Mac
that has seen records that the server does not have is in quarantine (LedgerBehind or LedgerForked). This command creates
the missing leases and instances with their original UIDs, names, binding times and floors, and ends the quarantine. Each
step is recorded. The command can be repeated. Without arguments, it restores all Macs in such a quarantine.`,
		Example: `  macrack-ledger restore --dry-run
  macrack-ledger restore mac-1`,
		RunE: func(cmd *cobra.Command, macs []string) error {
			client, err := newClient(options.kubeconfig, options.context)
			if err != nil {
				return err
			}
			return options.run(cmd.Context(), client, macs, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.kubeconfig, "kubeconfig", "", "Path of the kubeconfig of a cluster administrator. Default: KUBECONFIG or ~/.kube/config.")
	flags.StringVar(&options.context, "context", "", "Context of the kubeconfig. Default: the current one.")
	flags.BoolVar(&options.dryRun, "dry-run", false, "Print the plan, and change nothing.")
	return cmd
}

func (o *restoreOptions) run(ctx context.Context, client versioned.Interface, macs []string, out io.Writer) error {
	if len(macs) == 0 {
		var err error
		if macs, err = lostMacs(ctx, client); err != nil {
			return err
		}
	}
	create := metav1.CreateOptions{}
	if o.dryRun {
		create.DryRun = []string{metav1.DryRunAll}
	}
	steps, restored := 0, 0
	var errs []error
	for _, mac := range macs {
		result, err := client.RackV1alpha1().MacNodes().Restore(ctx, mac, &v1alpha1.MacNodeRestore{}, create)
		if err != nil {
			fmt.Fprintf(out, "%s: failed: %v\n", mac, err)
			errs = append(errs, fmt.Errorf("%s: %w", mac, err))
			continue
		}
		restored++
		for _, step := range result.Steps {
			fmt.Fprintf(out, "%s: %s\n", mac, step)
			steps++
		}
	}
	done := "restored"
	if o.dryRun {
		done = "planned"
	}
	fmt.Fprintf(out, "restore: macs=%d %s=%d failed=%d steps=%d\n", len(macs), done, restored, len(errs), steps)
	return errors.Join(errs...)
}

// lostMacs returns the names of the Macs in quarantine because the server has lost history.
func lostMacs(ctx context.Context, client versioned.Interface) ([]string, error) {
	list, err := client.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, mac := range list.Items {
		if q := mac.Status.Quarantine; q != nil && rules.LostHistory(q.Reason) {
			names = append(names, mac.Name)
		}
	}
	return names, nil
}
