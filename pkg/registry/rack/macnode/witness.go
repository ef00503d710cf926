package macnode

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// Append appends a record of the Mac to its chain, and stores the new head of the chain in node.
// The agent of the Mac keeps the head as its witness. The caller writes node in the same
// transaction.
func Append(ctx context.Context, tx *txn.Tx, clock clock.PassiveClock, node *rack.MacNode, record *rack.AuditRecord) error {
	if err := ledger.Append(ctx, tx, clock, record); err != nil {
		return err
	}
	setHead(node, record)
	return nil
}

func setHead(node *rack.MacNode, record *rack.AuditRecord) {
	state := ledgerOf(node)
	state.Head = rack.ChainPosition{Sequence: record.Sequence, Hash: record.Hash, Namespace: record.Namespace}
	node.Status.Ledger = &state
}

// ledgerOf returns a copy of the state of the chain of a Mac.
func ledgerOf(node *rack.MacNode) rack.MacNodeLedger {
	if l := node.Status.Ledger; l != nil {
		return *l
	}
	return rack.MacNodeLedger{}
}

// ShowHead adds the MacNode of a record to a transaction that has appended the record without it,
// so that its Mac witnesses the record.
func ShowHead(ctx context.Context, tx *txn.Tx, record *rack.AuditRecord) error {
	if record.Chassis.NodeName == "" {
		return nil
	}
	node := &rack.MacNode{}
	if err := tx.Get(ctx, Resource, "", record.Chassis.NodeName, node); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if node.Spec.SerialNumber != record.Chassis.SerialNumber || ledgerOf(node).Head.Sequence >= record.Sequence {
		return nil
	}
	setHead(node, record)
	return tx.Update(ctx, Resource, node)
}

// chainHead returns the head of the chain of a Mac.
func chainHead(ctx context.Context, tx *txn.Tx, node *rack.MacNode) (ledger.Head, error) {
	return ledger.ReadHead(ctx, tx, ledger.ChassisChain(node.Spec.SerialNumber))
}

// checkWitness compares a new witness with the chain of the Mac. An unchanged witness needs no
// check, because a chain only grows. Only the agent writes the witness.
func (p *planner) checkWitness(ctx context.Context, tx *txn.Tx, old, new *rack.MacNode) (rules.History, error) {
	if !requestuser.IsAgent(ctx) {
		new.Status.Witness = old.Status.Witness
		return rules.HistoryIntact, nil
	}
	if state := ledgerOf(new); state.Unconfirmed {
		state.Unconfirmed = false
		new.Status.Ledger = &state
	}
	if q := old.Status.Quarantine; q != nil && rules.LostHistory(q.Reason) {
		keepWitness(old, new)
	}
	seen := positionOf(new.Status.Witness)
	if new.Status.Witness == nil || seen == positionOf(old.Status.Witness) {
		return rules.HistoryIntact, nil
	}
	return p.judge(ctx, tx, new)
}

// keepWitness keeps the witness that has revealed a loss: a Mac that has lost it as well must not
// hide the loss.
func keepWitness(old, new *rack.MacNode) {
	if was := old.Status.Witness; was != nil && positionOf(new.Status.Witness).Sequence < was.Head.Sequence {
		new.Status.Witness = was
	}
}

// judge compares the witness of a Mac with its chain.
func (p *planner) judge(ctx context.Context, tx *txn.Tx, node *rack.MacNode) (rules.History, error) {
	seen := positionOf(node.Status.Witness)
	if accepted := ledgerOf(node).Accepted; accepted != nil && seen == position(*accepted) {
		return rules.HistoryIntact, nil
	}
	head, err := chainHead(ctx, tx, node)
	if err != nil {
		return "", err
	}
	return rules.JudgeHistory(seen, rules.ChainPosition{Sequence: head.Sequence, Hash: head.Hash}, func() (string, error) {
		return ledger.HashAt(ctx, tx, node.Status.Witness.Head.Namespace, ledger.ChassisChain(node.Spec.SerialNumber), seen.Sequence)
	})
}

func position(p rack.ChainPosition) rules.ChainPosition {
	return rules.ChainPosition{Sequence: p.Sequence, Hash: p.Hash}
}

func positionOf(witness *rack.MacNodeWitness) rules.ChainPosition {
	if witness == nil {
		return rules.ChainPosition{}
	}
	return position(witness.Head)
}

// beginLoss puts a Mac in quarantine because it has seen records that the server does not have. Its
// virtual machines continue to run.
func (p *planner) beginLoss(node *rack.MacNode, loss rules.History) *rack.AuditRecord {
	seen := positionOf(node.Status.Witness)
	head := position(ledgerOf(node).Head)
	node.Status.Quarantine = &rack.Quarantine{
		Reason: string(loss), Message: loss.Describe(node.Spec.SerialNumber, seen, head),
		Since: metav1.NewTime(p.clock.Now()), BootID: node.Status.BootID,
	}
	record := ledger.NewNodeQuarantined(node)
	record.Details.WitnessedSequence, record.Details.WitnessedHash = seen.Sequence, seen.Hash
	return record
}

// endLoss ends the quarantine of a Mac that has seen records that the server does not have, if an
// administrator requests it. The server must have what the Mac serves.
func (p *planner) endLoss(ctx context.Context, tx *txn.Tx, old, new *rack.MacNode) (*rack.AuditRecord, error) {
	q := old.Status.Quarantine
	if requestuser.IsAgent(ctx) || new.Status.Quarantine != nil {
		new.Status.Quarantine = q
		return nil, nil
	}
	missing, err := Missing(ctx, tx, new)
	if err != nil {
		return nil, err
	}
	if missing != "" {
		return nil, apierrors.NewConflict(Resource, new.Name, fmt.Errorf("the quarantine (%s) cannot end: the Mac serves %s, which the server does not have; "+
			"restore it with macrack-ledger restore", q.Reason, missing))
	}
	AcceptLoss(new, p.clock.Now())
	return ledger.NewNodeRecovered(new, "Administrator", fmt.Sprintf("an administrator ended the quarantine (%s): %s", q.Reason, q.Message)), nil
}

// AcceptLoss ends the quarantine of a Mac that has seen records that the server does not have. From
// then on, the Mac accepts the chain of the server.
func AcceptLoss(node *rack.MacNode, now time.Time) {
	node.Status.Quarantine = nil
	resetConditions(node, now)
	state := ledgerOf(node)
	if w := node.Status.Witness; w != nil {
		state.Accepted = &w.Head
	}
	node.Status.Ledger = &state
}

// Missing describes what a Mac serves according to its witness and the server does not have. It
// returns an empty string if nothing is missing.
func Missing(ctx context.Context, tx *txn.Tx, node *rack.MacNode) (string, error) {
	w := node.Status.Witness
	if w == nil || w.LeaseRef == nil {
		return "", nil
	}
	ref := node.Status.LeaseRef
	if ref == nil || ref.UID != w.LeaseRef.UID {
		return fmt.Sprintf("lease %s/%s (UID %s)", w.LeaseRef.Namespace, w.LeaseRef.Name, w.LeaseRef.UID), nil
	}
	if floor := node.Status.EarliestReleaseAt; w.EarliestReleaseAt != nil && (floor == nil || floor.Before(w.EarliestReleaseAt)) {
		return fmt.Sprintf("the floor of lease %s/%s", ref.Namespace, ref.Name), nil
	}
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, rack.Resource("macnodeleases"), ref.Namespace, ref.Name, lease); err != nil {
		return "", err
	}
	for _, instance := range w.Instances {
		if !hasSlot(lease, instance) {
			return fmt.Sprintf("instance %s/%s (UID %s)", ref.Namespace, instance.Name, instance.UID), nil
		}
	}
	return "", nil
}

func hasSlot(lease *rack.MacNodeLease, instance rack.WitnessedInstance) bool {
	for _, slot := range lease.Status.Instances {
		if slot.UID == instance.UID {
			return true
		}
	}
	return false
}
