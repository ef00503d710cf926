package macnodelease

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// keepFloor derives the floor from the binding and the minimum duration, and never moves it
// backwards. The next write thereby restores a floor that was stored too short.
func (p *planner) keepFloor(old, new *rack.MacNodeLease) {
	new.Status.BoundAt = old.Status.BoundAt
	floor := metav1.NewTime(rules.LeaseFloor(old.Status.BoundAt, new.Spec.MinimumDuration.Value(), old.Status.EarliestReleaseAt))
	new.Status.EarliestReleaseAt = &floor
}

// floorOf returns the floor of a bound lease, even if the stored one is missing or too short.
func floorOf(lease *rack.MacNodeLease) time.Time {
	return rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt)
}

// releaseTime returns the earliest time of all replicas if the floor has passed by this replica's
// clock, and now otherwise.
func (p *planner) releaseTime(ctx context.Context, tx *txn.Tx, now, floor time.Time) (time.Time, error) {
	if !rules.FloorPassed(now, floor) {
		return now, nil
	}
	return p.fleet.Earliest(ctx, tx, now)
}

// checkRelease refuses to release a lease before its floor. The refusal is recorded, except right
// after the floor, when only the last readings of other replicas are from before it: this is not an
// attempt to tamper.
func (p *planner) checkRelease(old *rack.MacNodeLease, releaseTime, floor time.Time) error {
	err := rules.CheckRelease(releaseTime, floor)
	if err != nil && rules.FloorPassed(p.clock.Now(), floor) && rules.FloorPassed(releaseTime.Add(fleetclock.Tolerance), floor) {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("%s: the floor has not passed by the clocks of all API servers; try again in a few seconds", rules.TwentyFourHours))
	}
	if err != nil {
		return tampered(old, "EarlyRelease", err)
	}
	return nil
}

// lengthen moves a floor forward, also on the Mac, and records it.
func (p *planner) lengthen(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	if old.Status.Phase != rack.MacNodeLeaseBound && old.Status.Phase != rack.MacNodeLeaseHeld {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("%s: the lease is %s, which cannot be lengthened; create a new lease", rules.TwentyFourHours, old.Status.Phase))
	}
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	if old.Status.Phase == rack.MacNodeLeaseHeld && rules.FloorPassed(now, floorOf(old)) {
		return apierrors.NewForbidden(Resource, new.Name, fmt.Errorf("%s: the lease was deleted and its floor has passed, so it cannot be lengthened; create a new lease", rules.TwentyFourHours))
	}
	node, err := p.node(ctx, tx, new)
	if err != nil {
		return err
	}
	node.Status.EarliestReleaseAt = new.Status.EarliestReleaseAt
	node.Status.PrefetchImages = new.Spec.PrefetchImages
	return record(ctx, tx, now, node, ledger.NewFloorLengthened(new, old.Status.EarliestReleaseAt))
}

// tampered returns the recorded refusal of an attempt to shorten a floor. cause names the rule.
func tampered(lease *rack.MacNodeLease, reason string, cause error) error {
	return rejection.Forbidden(Resource, lease.Name, cause, ledger.NewFloorTamperRejected(lease, reason, cause.Error()))
}

func hasFloor(lease *rack.MacNodeLease) bool {
	return slices.Contains(lease.Finalizers, rules.FinalizerFloor)
}
