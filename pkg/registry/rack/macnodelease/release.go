package macnodelease

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

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
	releaseTime, err := p.releaseTime(ctx, tx, now, new.Status.EarliestReleaseAt.Time)
	if err != nil {
		return err
	}
	if err := p.checkRelease(old, releaseTime, new.Status.EarliestReleaseAt.Time); err != nil {
		return err
	}
	return p.beginRelease(ctx, tx, new, now)
}

// beginRelease starts the release of the Mac: its agent empties and scrubs it.
func (p *planner) beginRelease(ctx context.Context, tx *txn.Tx, new *rack.MacNodeLease, now time.Time) error {
	node, err := p.node(ctx, tx, new)
	if err != nil {
		return err
	}
	since := metav1.NewTime(now.Truncate(time.Second))
	node.Status.ReleasingSince = &since
	macnode.DerivePhase(node)
	return tx.Update(ctx, macnode.Resource, node)
}

// release releases the Mac of the lease. new is nil if the lease is deleted with its last
// finalizer.
func (p *planner) release(ctx context.Context, tx *txn.Tx, old, new *rack.MacNodeLease) error {
	release, releasing := releaseFrom(ctx)
	if !releasing {
		return tampered(old, "FloorFinalizerRemoved", fmt.Errorf("%s: the finalizer %s keeps the Mac with its lease and is removed only by its release; deleting the lease is enough, it ends by itself at %s",
			rules.TwentyFourHours, rules.FinalizerFloor, floorOf(old).UTC().Format(time.RFC3339)))
	}
	node, err := p.node(ctx, tx, old)
	if err != nil {
		return err
	}
	now, err := ledger.Now(ctx, tx, p.clock, old.Status.SerialNumber)
	if err != nil {
		return err
	}
	floor := floorOf(old)
	releaseTime, err := p.releaseTime(ctx, tx, now, floor)
	if err != nil {
		return err
	}
	if err := p.checkRelease(old, releaseTime, floor); err != nil {
		return err
	}
	if _, message := rules.BlocksRelease(releaseFacts(old, node, release.NodeTaints)); message != "" {
		return apierrors.NewConflict(Resource, old.Name, fmt.Errorf("it cannot be released yet: %s", message))
	}
	releasedAt := metav1.NewTime(now.Truncate(time.Second))
	if new != nil {
		new.Status.ReleasedAt = &releasedAt
		new.Status.Phase = rack.MacNodeLeaseReleased
	}
	released := ledger.NewLeaseReleased(old, releasedAt.Time, release.NodeTaints)
	released.Details.AttemptedAt = deletedAt(old, node)
	macnode.Unassign(node)
	macnode.DerivePhase(node)
	return record(ctx, tx, now, node, released)
}

// deletedAt returns the time at which a lease was deleted, by the clock of the ledger: when it
// became Held, or, after its floor, when the release of its Mac began.
func deletedAt(lease *rack.MacNodeLease, node *rack.MacNode) *metav1.Time {
	if lease.Status.HeldAt != nil {
		return lease.Status.HeldAt.DeepCopy()
	}
	return node.Status.ReleasingSince.DeepCopy()
}

func releaseFacts(lease *rack.MacNodeLease, node *rack.MacNode, taints []string) rules.ReleaseFacts {
	facts := rules.ReleaseFacts{
		Releasing: lease.Status.Phase == rack.MacNodeLeaseReleasing && lease.DeletionTimestamp != nil, Phase: string(lease.Status.Phase),
		SerialNumber: node.Spec.SerialNumber,
		Scrub: rules.ScrubFacts{
			Releasing: node.Status.ReleasingSince != nil, RunningVMs: node.Status.RunningVMs, LeaseUID: lease.UID,
			Scrubbed: meta.IsStatusConditionTrue(node.Status.Conditions, rack.MacNodeScrubbed),
		},
		Node: node.Name, Taints: rules.ParseTaints(taints),
	}
	for _, slot := range lease.Status.Instances {
		facts.Instances = append(facts.Instances, slot.Name)
	}
	if scrub := node.Status.Scrub; scrub != nil {
		facts.Scrub.ReportedLease, facts.Scrub.Remaining = scrub.LeaseUID, scrub.Remaining
	}
	return facts
}
