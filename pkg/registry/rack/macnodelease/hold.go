package macnodelease

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// hold handles the deletion of a bound lease: it becomes Held, or Releasing if the floor has
// passed.
func (p *planner) hold(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	releaseTime, err := p.releaseTime(ctx, tx, now, new.Status.EarliestReleaseAt.Time)
	if err != nil {
		return err
	}
	if rules.FloorPassed(releaseTime, new.Status.EarliestReleaseAt.Time) {
		new.Status.Phase = rack.MacNodeLeaseReleasing
		return p.beginRelease(ctx, tx, new, now)
	}
	new.Status.Phase = rack.MacNodeLeaseHeld
	new.Status.HeldAt = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
	for n := range new.Status.Instances {
		new.Status.Instances[n].Stop = true
	}
	node, err := p.node(ctx, tx, new)
	if err != nil {
		return err
	}
	ref := *node.Status.LeaseRef
	ref.HeldAt = new.Status.HeldAt
	node.Status.LeaseRef = &ref
	return record(ctx, tx, now, node, ledger.NewLeaseHeld(new, now))
}
