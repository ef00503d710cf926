// Package restore rebuilds what a Mac serves after etcd has lost it: the lease, its floor, its
// instances and their slots, from the witness of the Mac, with their original UIDs, names and
// times. Each step is one transaction with its record, so an interrupted restore can be repeated.
package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/tenancy"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// reasonRestored is the reason in the records of a restore.
const reasonRestored = "Restored"

// maxSteps exceeds the number of steps of the restore of a Mac.
const maxSteps = 16

// Restorer restores Macs.
type Restorer struct {
	Backend   *txn.Backend
	Clock     clock.PassiveClock
	Fleet     *fleetclock.Clock
	Ownership *tenancy.Ownership
}

// A step is one change, and its description.
type step struct {
	text  string
	apply func(ctx context.Context, tx *txn.Tx) error
}

// errPlanned ends the transaction of a dry run.
var errPlanned = errors.New("planned")

// Restore restores the Mac with a name, and returns the steps that it has made. With dryRun, it
// returns the plan and changes nothing. A Mac without lost history has no steps.
func (r *Restorer) Restore(ctx context.Context, name string, dryRun bool) ([]string, error) {
	if dryRun {
		return r.preview(ctx, name)
	}
	var done []string
	for range maxSteps {
		var current string
		err := r.Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
			current = ""
			steps, err := r.plan(ctx, tx, name)
			if err != nil || len(steps) == 0 {
				return err
			}
			current = steps[0].text
			return steps[0].apply(ctx, tx)
		})
		if err != nil || current == "" {
			return done, err
		}
		done = append(done, current)
	}
	return done, apierrors.NewInternalError(fmt.Errorf("the restore of Mac %q has not ended after %d steps", name, maxSteps))
}

// preview returns the plan.
func (r *Restorer) preview(ctx context.Context, name string) ([]string, error) {
	var texts []string
	err := r.Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
		texts = nil
		steps, err := r.plan(ctx, tx, name)
		if err != nil {
			return err
		}
		for _, s := range steps {
			texts = append(texts, s.text)
		}
		return errPlanned
	})
	if errors.Is(err, errPlanned) {
		return texts, nil
	}
	return nil, err
}

// plan returns the remaining steps. The first one is valid in this transaction.
func (r *Restorer) plan(ctx context.Context, tx *txn.Tx, name string) ([]step, error) {
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", name, node); err != nil {
		return nil, err
	}
	if q := node.Status.Quarantine; q == nil || !rules.LostHistory(q.Reason) {
		return nil, nil
	}
	m := &mac{Restorer: r, node: node, witness: node.Status.Witness}
	var err error
	if m.now, err = ledger.Now(ctx, tx, r.Clock, node.Spec.SerialNumber); err != nil {
		return nil, err
	}
	var steps []step
	if m.witness != nil && m.witness.LeaseRef != nil {
		if steps, err = m.planLease(ctx, tx); err != nil {
			return nil, err
		}
		instances, err := m.planInstances(ctx, tx)
		if err != nil {
			return nil, err
		}
		steps = append(steps, instances...)
	}
	return append(steps, step{fmt.Sprintf("end the quarantine of MacNode %s (%s)", node.Name, node.Status.Quarantine.Reason), m.recover}), nil
}

// A mac is the Mac that is being restored.
type mac struct {
	*Restorer
	node    *rack.MacNode
	witness *rack.MacNodeWitness
	now     time.Time
	// lease is the lease on the server; nil if it is to be created.
	lease *rack.MacNodeLease
}

// record appends a record of the Mac with the reason of a restore, and writes the MacNode.
func (m *mac) record(ctx context.Context, tx *txn.Tx, record *rack.AuditRecord) error {
	record.Details.Reason = reasonRestored
	macnode.DerivePhase(m.node)
	if err := macnode.Append(ctx, tx, ledger.At(m.now), m.node, record); err != nil {
		return err
	}
	return tx.Update(ctx, macnode.Resource, m.node)
}

// recover ends the quarantine. The Mac accepts the chain of the server from then on.
func (m *mac) recover(ctx context.Context, tx *txn.Tx) error {
	message := fmt.Sprintf("the Mac was restored from its witness (%s): %s", m.node.Status.Quarantine.Reason, m.node.Status.Quarantine.Message)
	macnode.AcceptLoss(m.node, m.now)
	return m.record(ctx, tx, ledger.NewNodeRecovered(m.node, reasonRestored, message))
}

// leaseRef returns the name of the lease that the Mac serves.
func (m *mac) leaseRef() string {
	ref := m.witness.LeaseRef
	return fmt.Sprintf("lease %s/%s (UID %s)", ref.Namespace, ref.Name, ref.UID)
}

// conflict returns the refusal of a restore.
func (m *mac) conflict(format string, args ...any) error {
	return apierrors.NewConflict(macnode.Resource, m.node.Name, fmt.Errorf(format, args...))
}

// floor returns the floor and the binding of the lease that the Mac serves.
func (m *mac) floor() (floor, boundAt metav1.Time) {
	w := m.witness
	switch {
	case w.LeaseRef.BoundAt != nil:
		boundAt = *w.LeaseRef.BoundAt
	case w.EarliestReleaseAt != nil: // bound by a server of an earlier version
		boundAt = metav1.NewTime(w.EarliestReleaseAt.Add(-rules.MinimumLeaseDuration))
	default:
		boundAt = metav1.NewTime(m.now.Truncate(time.Second))
	}
	return metav1.NewTime(rules.LeaseFloor(&boundAt, 0, w.EarliestReleaseAt)), boundAt
}

// getLease reads a lease; nil if it does not exist.
func getLease(ctx context.Context, tx *txn.Tx, namespace, name string) (*rack.MacNodeLease, error) {
	lease := &rack.MacNodeLease{}
	err := tx.Get(ctx, macnodelease.Resource, namespace, name, lease)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return lease, err
}
