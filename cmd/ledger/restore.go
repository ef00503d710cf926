package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	plan       string
	wrong      []string
}

func newRestoreCommand() *cobra.Command {
	options := &restoreOptions{}
	cmd := &cobra.Command{
		Use:   "restore [MAC...]",
		Short: "Restore leases and instances from the Macs, after a loss of etcd",
		Long: `Each Mac keeps the last record of its chain that it has seen, and the lease and the instances that it serves. A Mac
that has seen records that the server does not have is in quarantine (LedgerBehind or LedgerForked). This command creates
the missing leases and instances with their original UIDs, names, binding times and floors, and ends the quarantine. Each
step is recorded. Without arguments, it restores all Macs in such a quarantine.

A dry run prints the plan and its hash. The restore requires this hash, and does nothing if the plan has changed since.
After a restore that was interrupted, read the plan again. If two Macs report the same lease or instance, neither is
restored until --wrong names the Mac that is wrong.`,
		Example: `  macrack-ledger restore --dry-run
  macrack-ledger restore --plan=4f1c92d0a8b35e67
  macrack-ledger restore --dry-run mac-2 --wrong=mac-1`,
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
	flags.StringVar(&options.plan, "plan", "", "The hash of the plan, which the dry run has printed.")
	flags.StringSliceVar(&options.wrong, "wrong", nil, "Macs whose witnesses are wrong where they conflict with those of the restored Macs.")
	return cmd
}

// A macPlan is the plan of one Mac.
type macPlan struct {
	mac string
	*v1alpha1.MacNodeRestore
}

func (o *restoreOptions) run(ctx context.Context, client versioned.Interface, macs []string, out io.Writer) error {
	if len(macs) == 0 {
		var err error
		if macs, err = lostMacs(ctx, client, out); err != nil {
			return err
		}
	}
	plans, planErr := o.planAll(ctx, client, macs, out)
	hash := hashOf(plans)
	steps := 0
	for _, p := range plans {
		steps += len(p.Steps)
	}
	if o.dryRun || steps == 0 {
		for _, p := range plans {
			printSteps(out, p.mac, p.Steps)
		}
		fmt.Fprintf(out, "restore: macs=%d planned=%d failed=%d steps=%d plan=%s\n", len(macs), len(plans), len(macs)-len(plans), steps, hash)
		return planErr
	}
	if o.plan != hash {
		return errors.Join(planErr, fmt.Errorf("the plan has the hash %s, not %q; read the plan with --dry-run, and then pass its hash with --plan", hash, o.plan))
	}
	restored, err := o.restoreAll(ctx, client, plans, out)
	fmt.Fprintf(out, "restore: macs=%d restored=%d failed=%d steps=%d\n", len(macs), restored, len(macs)-restored, steps)
	return errors.Join(planErr, err)
}

// planAll returns the plans of Macs that have one.
func (o *restoreOptions) planAll(ctx context.Context, client versioned.Interface, macs []string, out io.Writer) ([]macPlan, error) {
	var plans []macPlan
	var errs []error
	for _, mac := range macs {
		plan, err := client.RackV1alpha1().MacNodes().Restore(ctx, mac, &v1alpha1.MacNodeRestore{WrongMacs: o.wrong},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			fmt.Fprintf(out, "%s: failed: %v\n", mac, err)
			errs = append(errs, fmt.Errorf("%s: %w", mac, err))
			continue
		}
		plans = append(plans, macPlan{mac, plan})
	}
	return plans, errors.Join(errs...)
}

// restoreAll carries out the plans, and returns the number of restored Macs.
func (o *restoreOptions) restoreAll(ctx context.Context, client versioned.Interface, plans []macPlan, out io.Writer) (restored int, err error) {
	var errs []error
	for _, p := range plans {
		request := &v1alpha1.MacNodeRestore{WitnessHash: p.WitnessHash, WrongMacs: o.wrong}
		result, err := client.RackV1alpha1().MacNodes().Restore(ctx, p.mac, request, metav1.CreateOptions{})
		if err != nil {
			fmt.Fprintf(out, "%s: failed: %v\n", p.mac, err)
			errs = append(errs, fmt.Errorf("%s: %w", p.mac, err))
			continue
		}
		restored++
		printSteps(out, p.mac, result.Steps)
	}
	return restored, errors.Join(errs...)
}

func printSteps(out io.Writer, mac string, steps []string) {
	for _, step := range steps {
		fmt.Fprintf(out, "%s: %s\n", mac, step)
	}
	if len(steps) == 0 {
		fmt.Fprintf(out, "%s: nothing to restore\n", mac)
	}
}

// hashOf returns the hash of plans.
func hashOf(plans []macPlan) string {
	sum := sha256.New()
	for _, p := range plans {
		fmt.Fprintf(sum, "%q %q %q\n", p.mac, p.WitnessHash, p.Steps)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// lostMacs returns the names of the Macs in quarantine because the server has lost history.
// It prints the Macs that have not reported yet.
func lostMacs(ctx context.Context, client versioned.Interface, out io.Writer) ([]string, error) {
	list, err := client.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, mac := range list.Items {
		if q := mac.Status.Quarantine; q != nil && rules.LostHistory(q.Reason) {
			names = append(names, mac.Name)
		}
		if l := mac.Status.Ledger; l != nil && l.Unconfirmed {
			fmt.Fprintf(out, "%s: has not reported yet; wait for its agent\n", mac.Name)
		}
	}
	return names, nil
}
