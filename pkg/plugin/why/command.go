package why

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

// NewCommand returns the command why.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	var output cmdutil.Output
	cmd := &cobra.Command{
		Use:   "why (mnl|mi|mn)/NAME",
		Short: "Explain what a lease, an instance or a Mac waits for",
		Long: `Explain the state of a lease (mnl), an instance (mi) or a Mac (mn): its phase, the condition that blocks it,
since when, its last Events and records, and what to type next.`,
		Example: `  # Explain why a lease is pending
  kubectl macrack why mnl/build

  # Explain why an instance does not start
  kubectl macrack why mi/one -n acme

  # Explain the state of a Mac
  kubectl macrack why mn/mac-1`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cmdutil.CompleteObjects(env, "mnl", "mi", "mn"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmdutil.Interrupted(cmd.Context(), run(cmd.Context(), env, output, args[0]))
		},
	}
	output.AddFlag(cmd.Flags())
	return cmd
}

func run(ctx context.Context, env *cmdutil.Env, output cmdutil.Output, arg string) error {
	resource, name, ok := strings.Cut(arg, "/")
	explain := explainers[resource]
	if !ok || explain == nil || name == "" {
		return fmt.Errorf("unknown object %q; use mnl/NAME for a lease, mi/NAME for an instance or mn/NAME for a Mac", arg)
	}
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	e, err := explain(ctx, env, clients, name)
	if err != nil {
		return err
	}
	if output != cmdutil.ForPeople {
		return output.Print(env.Out, e)
	}
	return cmdutil.Print(env.Out, draw(e, env.Now(), env.Style()))
}

type explainer func(ctx context.Context, env *cmdutil.Env, c *cmdutil.Clients, name string) (*Explanation, error)

// explainers are keyed by the names that kubectl knows.
var explainers = map[string]explainer{
	"mnl": lease, "macnodelease": lease, "macnodeleases": lease, "lease": lease, "leases": lease,
	"mi": instance, "macosinstance": instance, "macosinstances": instance, "instance": instance, "instances": instance,
	"mn": mac, "macnode": mac, "macnodes": mac,
}

func lease(ctx context.Context, env *cmdutil.Env, c *cmdutil.Clients, name string) (*Explanation, error) {
	l, err := c.MacRack.RackV1alpha1().MacNodeLeases(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, missing(fleet.Leases, c.Namespace, err)
	}
	e := explainLease(l, env.Now())
	if err := e.readEvents(ctx, c, l.UID); err != nil {
		return nil, err
	}
	return e, e.readRecords(ctx, c, c.Namespace, l.Status.SerialNumber, func(r *rackv1alpha1.AuditRecord) bool {
		return r.Lease != nil && r.Lease.UID == l.UID
	})
}

func instance(ctx context.Context, env *cmdutil.Env, c *cmdutil.Clients, name string) (*Explanation, error) {
	i, err := c.MacRack.InstanceV1alpha1().MacOSInstances(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, missing(fleet.Instances, c.Namespace, err)
	}
	e := explainInstance(i, env.Now())
	if err := e.readEvents(ctx, c, i.UID); err != nil {
		return nil, err
	}
	return e, e.readRecords(ctx, c, c.Namespace, i.Status.SerialNumber, func(r *rackv1alpha1.AuditRecord) bool {
		return r.Instance != nil && r.Instance.UID == i.UID
	})
}

func mac(ctx context.Context, env *cmdutil.Env, c *cmdutil.Clients, name string) (*Explanation, error) {
	m, err := c.MacRack.RackV1alpha1().MacNodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, missing(fleet.Macs, "", err)
	}
	e := explainMac(m, env.Now())
	if err := e.readEvents(ctx, c, m.UID); err != nil {
		return nil, err
	}
	return e, e.readRecords(ctx, c, metav1.NamespaceAll, m.Spec.SerialNumber, func(*rackv1alpha1.AuditRecord) bool { return true })
}

// missing returns the error for an object that cannot be read. A missing object keeps the message
// of the server.
func missing(resource cmdutil.Resource, namespace string, err error) error {
	if apierrors.IsNotFound(err) {
		return err
	}
	resource.Namespace = namespace
	return resource.Explain("get", err)
}
