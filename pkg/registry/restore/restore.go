// Package restore rebuilds what a Mac serves after etcd has lost it: the lease, its floor, its
// instances and their slots, from the witness of the Mac, with their original UIDs, names and
// times. Each step is one transaction with its record, so an interrupted restore can be repeated.
package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// A Request is a request to restore a Mac.
type Request struct {
	// WitnessHash is the hash of the witness that a dry run has shown. A dry run does not need it.
	WitnessHash string
	// WrongMacs are Macs whose witnesses are wrong where they conflict with this one.
	WrongMacs []string
	DryRun    bool
}

// A Result has the steps that were made, or planned, and the hash of the witness.
type Result struct {
	Steps       []string
	WitnessHash string
}

// errPlanned ends the transaction of a dry run.
var errPlanned = errors.New("planned")

// Restore restores the Mac with a name, and returns the steps that it has made. A dry run returns
// the plan and changes nothing. A Mac without lost history has no steps.
func (r *Restorer) Restore(ctx context.Context, name string, request Request) (Result, error) {
	if request.DryRun {
		return r.preview(ctx, name, request)
	}
	done := Result{WitnessHash: request.WitnessHash}
	for range maxSteps {
		var current string
		err := r.Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
			current = ""
			steps, _, err := r.plan(ctx, tx, name, request)
			if err != nil || len(steps) == 0 {
				return err
			}
			current = steps[0].text
			return steps[0].apply(ctx, tx)
		})
		if err != nil && len(done.Steps) > 0 {
			err = apierrors.NewConflict(macnode.Resource, name, fmt.Errorf("the restore was interrupted after these steps: %s; try again: %w", strings.Join(done.Steps, "; "), err))
		}
		if err != nil || current == "" {
			return done, err
		}
		done.Steps = append(done.Steps, current)
	}
	return done, apierrors.NewInternalError(fmt.Errorf("the restore of Mac %q has not ended after %d steps", name, maxSteps))
}

// preview returns the plan.
func (r *Restorer) preview(ctx context.Context, name string, request Request) (Result, error) {
	var planned Result
	err := r.Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
		steps, hash, err := r.plan(ctx, tx, name, request)
		if err != nil {
			return err
		}
		planned = Result{WitnessHash: hash}
		for _, s := range steps {
			planned.Steps = append(planned.Steps, s.text)
		}
		return errPlanned
	})
	if errors.Is(err, errPlanned) {
		return planned, nil
	}
	return Result{}, err
}

// plan returns the remaining steps, and the hash of the witness. The first step is valid in this
// transaction.
func (r *Restorer) plan(ctx context.Context, tx *txn.Tx, name string, request Request) ([]step, string, error) {
	node := &rack.MacNode{}
	if err := tx.Get(ctx, macnode.Resource, "", name, node); err != nil {
		return nil, "", err
	}
	if q := node.Status.Quarantine; q == nil || !rules.LostHistory(q.Reason) {
		return nil, "", nil
	}
	m := &mac{Restorer: r, node: node}
	if err := macnode.CheckWitnessed(node); err != nil {
		return nil, "", m.conflict("%w", err)
	}
	m.loss = node.Status.Ledger.Loss
	m.witness = &m.loss.Witness
	hash, err := m.checkRequest(ctx, tx, request)
	if err != nil {
		return nil, "", err
	}
	if m.now, err = ledger.Now(ctx, tx, r.Clock, node.Spec.SerialNumber); err != nil {
		return nil, "", err
	}
	var steps []step
	if m.witness.LeaseRef != nil {
		if steps, err = m.planLease(ctx, tx); err != nil {
			return nil, "", err
		}
		instances, err := m.planInstances(ctx, tx)
		if err != nil {
			return nil, "", err
		}
		steps = append(steps, instances...)
	}
	return append(steps, step{fmt.Sprintf("end the quarantine of MacNode %s (%s)", node.Name, node.Status.Quarantine.Reason), m.recover}), hash, nil
}

// checkRequest refuses a restore of another witness than the one that a dry run has shown, and of a
// witness that contradicts that of another Mac. It returns the hash of the witness.
func (m *mac) checkRequest(ctx context.Context, tx *txn.Tx, request Request) (string, error) {
	hash, err := macnode.WitnessHash(m.witness)
	if err != nil {
		return "", err
	}
	if !request.DryRun && request.WitnessHash != hash {
		return "", m.conflict("witnessHash is not that of the witness of the Mac; read the plan of a dry run first, and send the witnessHash that it returns")
	}
	claim, other, err := macnode.ConflictingClaim(ctx, tx, m.node, request.WrongMacs)
	if err != nil {
		return "", err
	}
	if other != "" {
		return "", m.conflict("Mac %q has %s in its witness too, and one of the two is wrong; inspect both, and name the wrong one in wrongMacs", other, claim)
	}
	return hash, nil
}

// A mac is the Mac that is being restored.
type mac struct {
	*Restorer
	node    *rack.MacNode
	loss    *rack.LedgerLoss
	witness *rack.MacNodeWitness // that of the loss
	now     time.Time
	// lease is the lease on the server; nil if it is to be created.
	lease          *rack.MacNodeLease
	boundAt, floor metav1.Time
}

// record appends a record of the Mac with the reason of a restore, and writes the MacNode.
func (m *mac) record(ctx context.Context, tx *txn.Tx, record *rack.AuditRecord) error {
	record.Details.Reason = ledger.ReasonRestored
	macnode.Derive(m.node, m.now)
	if err := macnode.Append(ctx, tx, ledger.At(m.now), m.node, record); err != nil {
		return err
	}
	return tx.Update(ctx, macnode.Resource, m.node)
}

// recover ends the quarantine. The Mac accepts the chain of the server from then on.
func (m *mac) recover(ctx context.Context, tx *txn.Tx) error {
	message := fmt.Sprintf("the Mac was restored from its witness (%s): %s", m.node.Status.Quarantine.Reason, m.node.Status.Quarantine.Message)
	record, err := macnode.AcceptLoss(ctx, tx, m.node, ledger.ReasonRestored, message)
	if err != nil {
		return err
	}
	return m.record(ctx, tx, record)
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

// checkFloor determines the binding and the floor of the lease that the Mac serves, and refuses
// times that cannot be true. The lease is bound at boundAt on the server, or nil.
func (m *mac) checkFloor(ctx context.Context, tx *txn.Tx, bound *metav1.Time) error {
	w := m.witness
	if w.EarliestReleaseAt == nil {
		return m.conflict("the Mac reports no floor of %s", m.leaseRef())
	}
	m.floor = *w.EarliestReleaseAt
	var lastRecord time.Time
	switch {
	case bound != nil && w.LeaseRef.BoundAt != nil && !bound.Equal(w.LeaseRef.BoundAt):
		return m.conflict("%s was bound at %s, and the Mac reports %s; inspect the Mac", m.leaseRef(), rfc3339(*bound), rfc3339(*w.LeaseRef.BoundAt))
	case bound != nil:
		m.boundAt = *bound
	case w.LeaseRef.BoundAt != nil:
		m.boundAt = *w.LeaseRef.BoundAt
	default: // bound by a server of an earlier version
		m.boundAt = metav1.NewTime(w.EarliestReleaseAt.Add(-rules.MinimumLeaseDuration))
		if now := metav1.NewTime(m.now.Truncate(time.Second)); now.Before(&m.boundAt) {
			m.boundAt = now
		}
	}
	if bound == nil && m.loss.LastRecordAt != nil {
		lastRecord = m.loss.LastRecordAt.Time
	}
	now, err := m.Fleet.Latest(ctx, tx, m.now)
	if err != nil {
		return err
	}
	if err := rules.CheckWitnessedFloor(now, lastRecord, m.boundAt.Time, m.floor.Time); err != nil {
		return m.conflict("%s cannot be restored: %w", m.leaseRef(), err)
	}
	return nil
}

func rfc3339(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }

// getLease reads a lease; nil if it does not exist.
func getLease(ctx context.Context, tx *txn.Tx, namespace, name string) (*rack.MacNodeLease, error) {
	lease := &rack.MacNodeLease{}
	err := tx.Get(ctx, macnodelease.Resource, namespace, name, lease)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return lease, err
}
