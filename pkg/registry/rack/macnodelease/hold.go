package macnodelease

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// delete plans the final deletion of a lease.
func (p *planner) delete(ctx context.Context, tx *txn.Tx, old *rack.MacNodeLease) error {
	if hasFloor(old) && old.DeletionTimestamp == nil {
		// The lease had no Mac when the deletion began.
		return boundMeanwhile{apierrors.NewConflict(Resource, old.Name, fmt.Errorf("it was bound to Mac %q at the same time; delete it again", old.Status.NodeName))}
	}
	if hasFloor(old) {
		return p.release(ctx, tx, old, nil)
	}
	if bound(old) && old.Status.ReleasedAt == nil {
		return tampered(old, "FloorFinalizerMissing", fmt.Errorf("%s: the lease has a Mac, which must be released first", rules.TwentyFourHours))
	}
	return nil
}

// boundMeanwhile is the error of the deletion of a lease that was bound after it had been read.
// This is not an attempt to tamper with its floor: the deletion is retried.
type boundMeanwhile struct{ *apierrors.StatusError }

// hold handles the deletion of a bound lease: it becomes Held, or Releasing if the floor has
// passed.
func (p *planner) hold(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	agreed, err := p.agreed(ctx, tx, now, new.Status.EarliestReleaseAt.Time)
	if err != nil {
		return err
	}
	if rules.FloorPassed(agreed, new.Status.EarliestReleaseAt.Time) {
		new.Status.Phase = rack.MacNodeLeaseReleasing
		return p.beginRelease(ctx, tx, new, now)
	}
	new.Status.Phase = rack.MacNodeLeaseHeld
	new.Status.HeldAt = ptr.To(metav1.NewTime(now.Truncate(time.Second)))
	for n := range new.Status.Instances {
		new.Status.Instances[n].Stop = true
	}
	return ledger.Append(ctx, tx, ledger.At(now), ledger.NewLeaseHeld(new, now))
}

// changePhase permits the transition from Held to Releasing after the floor, and refuses all other
// writes of the phase.
func (p *planner) changePhase(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	if old.Status.Phase != rack.MacNodeLeaseHeld || new.Status.Phase != rack.MacNodeLeaseReleasing {
		return tampered(old, "PhaseTampered", fmt.Errorf("%s: the phase goes from Held to Releasing at the floor, not from %s to %s", rules.TwentyFourHours, old.Status.Phase, new.Status.Phase))
	}
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	agreed, err := p.agreed(ctx, tx, now, new.Status.EarliestReleaseAt.Time)
	if err != nil {
		return err
	}
	if err := p.early(old, agreed, new.Status.EarliestReleaseAt.Time); err != nil {
		return err
	}
	return p.beginRelease(ctx, tx, new, now)
}
