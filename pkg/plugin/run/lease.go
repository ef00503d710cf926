package run

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
	"macrack.io/macrack/pkg/plugin/terminal"
	"macrack.io/macrack/pkg/rules"
)

// chooseLease returns the name of a lease that accepts the instance, and makes one if necessary.
func (r *runner) chooseLease(ctx context.Context) (string, error) {
	client := r.clients.MacRack.RackV1alpha1().MacNodeLeases(r.clients.Namespace)
	if r.options.Lease != "" {
		lease, err := client.Get(ctx, r.options.Lease, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return lease.Name, r.checkLease(lease)
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		resource := fleet.Leases
		resource.Namespace = r.clients.Namespace
		return "", resource.Explain("list", err)
	}
	class, err := r.clients.MacRack.InstanceV1alpha1().InstanceClasses().Get(ctx, r.options.Class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	free, err := r.freeLeases(ctx, list.Items, class)
	if err != nil {
		return "", err
	}
	if len(free) > 0 {
		return free[0].Name, nil
	}
	return r.newLease(ctx)
}

// checkLease refuses a lease that does not accept an instance now.
func (r *runner) checkLease(lease *rackv1alpha1.MacNodeLease) error {
	floor := rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt)
	if err := rules.CheckAcceptsInstance(lease.Name, string(lease.Status.Phase), floor, r.env.Clock.Now()); err != nil {
		return err
	}
	var taken []string
	for _, slot := range lease.Status.Instances {
		taken = append(taken, slot.Name)
	}
	return rules.CheckSlot(lease.Name, taken)
}

// freeLeases returns the leases on which an instance of the class can start now. Leases that are
// not deleted come first, then those with the latest floor.
func (r *runner) freeLeases(ctx context.Context, leases []rackv1alpha1.MacNodeLease, class *instancev1alpha1.InstanceClass) ([]rackv1alpha1.MacNodeLease, error) {
	var free []rackv1alpha1.MacNodeLease
	for _, lease := range leases {
		if !meta.IsStatusConditionTrue(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionReady) || r.checkLease(&lease) != nil {
			continue
		}
		fits, err := r.fits(ctx, &lease, class)
		if err != nil {
			return nil, err
		}
		if fits {
			free = append(free, lease)
		}
	}
	rank := func(lease rackv1alpha1.MacNodeLease) int {
		if lease.DeletionTimestamp == nil {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(free, func(a, b rackv1alpha1.MacNodeLease) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), b.Status.EarliestReleaseAt.Time.Compare(a.Status.EarliestReleaseAt.Time))
	})
	return free, nil
}

// fits reports whether an instance of the class fits beside the others of the lease.
func (r *runner) fits(ctx context.Context, lease *rackv1alpha1.MacNodeLease, class *instancev1alpha1.InstanceClass) (bool, error) {
	node, err := r.clients.MacRack.RackV1alpha1().MacNodeClasses().Get(ctx, lease.Spec.ClassName, metav1.GetOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return true, nil // the server decides
	}
	if err != nil {
		return false, err
	}
	var used rules.Resources
	for _, slot := range lease.Status.Instances {
		used = used.Add(resources(slot.Resources))
	}
	asked := class.Spec.Resources
	return rules.CheckFit(node.Name, resources(node.Spec.Capacity), resources(node.Spec.HostReserved), used,
		rules.Resources{CPU: asked.CPU.Value(), Memory: asked.Memory.Value(), Storage: asked.Storage.Value()}) == nil, nil
}

func resources(r rackv1alpha1.MachineResources) rules.Resources {
	return rules.Resources{CPU: r.CPU.Value(), Memory: r.Memory.Value(), Storage: r.Storage.Value()}
}

// newLease makes a lease after a confirmation, and waits for its Mac. The lease deletes itself at
// its floor, even if this program is killed.
func (r *runner) newLease(ctx context.Context) (string, error) {
	cost, err := r.describeCost(ctx)
	if err != nil {
		return "", err
	}
	client := r.clients.MacRack.RackV1alpha1().MacNodeLeases(r.clients.Namespace)
	wanted := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{GenerateName: namePrefix},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: r.options.NodeClass, ExpireAfter: scalar.NewDuration(rules.MinimumLeaseDuration)},
	}
	// A lease that would be refused needs no confirmation.
	if _, err := client.Create(ctx, wanted, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return "", fmt.Errorf("no lease has a free slot, and a new one would be refused: %w", err)
	}
	if err := r.confirm(ctx, cost); err != nil {
		return "", err
	}
	lease, err := client.Create(context.WithoutCancel(ctx), wanted, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to make a lease: %w", err)
	}
	r.onExit(func(ctx context.Context) error { return r.dropPendingLease(ctx, lease.Name, lease) })
	r.progress("Lease %s made", lease.Name)
	return lease.Name, r.waitForLease(ctx, lease)
}

// describeCost returns what a new lease costs.
func (r *runner) describeCost(ctx context.Context) (string, error) {
	hours := int(rules.MinimumLeaseDuration.Hours())
	what := "a Mac of the default class"
	if name := r.options.NodeClass; name != "" {
		class, err := r.clients.MacRack.RackV1alpha1().MacNodeClasses().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		what = fmt.Sprintf("a Mac of class %s (%s)", name, terminal.Clean(class.Spec.Model))
		if class.Spec.SKU != "" {
			what += ", SKU " + terminal.Clean(class.Spec.SKU)
		}
	}
	return fmt.Sprintf("No lease in namespace %s has a free slot. A new lease takes %s for %d hours and is billed for all of them;\n"+
		"it deletes itself after that time, and further runs can use it until then.", r.clients.Namespace, what, hours), nil
}

// confirm asks the user to accept a cost.
func (r *runner) confirm(ctx context.Context, cost string) error {
	if _, err := fmt.Fprintln(r.env.ErrOut, cost); err != nil {
		return err
	}
	if r.options.Yes {
		return nil
	}
	if !terminal.IsTerminal(r.env.In, r.env.Getenv) {
		return errors.New("standard input is not a terminal; confirm the new lease with --yes, or name a lease with --lease")
	}
	fmt.Fprint(r.env.ErrOut, "Lease a Mac? [y/N] ")
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be interrupted
		line, _ := bufio.NewReader(r.env.In).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return cmdutil.ErrInterrupted
	case line := <-answer:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		return errors.New("no Mac leased")
	}
}

// dropPendingLease deletes a lease of this run that has no Mac yet, so that it never costs
// anything. A lease with a Mac stays until its floor.
func (r *runner) dropPendingLease(ctx context.Context, name string, made *rackv1alpha1.MacNodeLease) error {
	client := r.clients.MacRack.RackV1alpha1().MacNodeLeases(r.clients.Namespace)
	lease, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if lease.UID != made.UID {
		return nil
	}
	if lease.Status.BoundAt != nil {
		r.progress("Lease %s keeps its Mac until %s; use it with --lease %s", name, cmdutil.Time(lease.Status.EarliestReleaseAt.Time), name)
		return nil
	}
	err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
	if err == nil {
		r.progress("Lease %s deleted; it had no Mac", name)
	}
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
