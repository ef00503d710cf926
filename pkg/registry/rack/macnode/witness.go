package macnode

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	setHead(node, rack.ChainPosition{Sequence: record.Sequence, Hash: record.Hash, Namespace: record.Namespace})
	return nil
}

func setHead(node *rack.MacNode, head rack.ChainPosition) {
	state := ledgerOf(node)
	state.Head = head
	node.Status.Ledger = &state
}

// ledgerOf returns a copy of the state of the chain of a Mac.
func ledgerOf(node *rack.MacNode) rack.MacNodeLedger {
	if l := node.Status.Ledger; l != nil {
		return *l
	}
	return rack.MacNodeLedger{}
}

// Unconfirmed reports whether the server may have lost records that the Mac has seen.
func Unconfirmed(node *rack.MacNode) bool { return ledgerOf(node).Unconfirmed }

// ShowHead adds the MacNode of a record to a transaction that has appended the record without it,
// so that its Mac witnesses the record.
func ShowHead(ctx context.Context, tx *txn.Tx, record *rack.AuditRecord) error {
	if record.Chassis.NodeName == "" {
		return nil
	}
	node := &rack.MacNode{}
	err := tx.Get(ctx, Resource, "", record.Chassis.NodeName, node)
	var undecodable *txn.DecodeError
	if apierrors.IsNotFound(err) || errors.As(err, &undecodable) {
		return nil
	}
	if err != nil {
		return err
	}
	if node.Spec.SerialNumber != record.Chassis.SerialNumber || ledgerOf(node).Head.Sequence >= record.Sequence {
		return nil
	}
	setHead(node, rack.ChainPosition{Sequence: record.Sequence, Hash: record.Hash, Namespace: record.Namespace})
	return tx.Update(ctx, Resource, node)
}

// chainHead returns the head of the chain of a Mac.
func chainHead(ctx context.Context, tx *txn.Tx, node *rack.MacNode) (ledger.Head, error) {
	return ledger.ReadHead(ctx, tx, ledger.ChassisChain(node.Spec.SerialNumber))
}

// showHead stores the head of the chain in a MacNode that does not show it, because it was created
// again, or because a server of an earlier version has written it.
func showHead(ctx context.Context, tx *txn.Tx, node *rack.MacNode, head ledger.Head) error {
	if head.Sequence == 0 || ledgerOf(node).Head.Sequence == head.Sequence {
		return nil
	}
	record, err := ledger.FindRecord(ctx, tx, ledger.ChassisChain(node.Spec.SerialNumber), head.Sequence, namespacesOf(node)...)
	if err != nil {
		return err
	}
	position := rack.ChainPosition{Sequence: head.Sequence, Hash: head.Hash}
	if record != nil {
		position.Namespace = record.Namespace
	}
	setHead(node, position)
	return nil
}

// namespacesOf returns the namespaces that may have the last records of a Mac.
func namespacesOf(node *rack.MacNode) []string {
	namespaces := []string{ledger.SystemNamespace, ledgerOf(node).Head.Namespace}
	if ref := node.Status.LeaseRef; ref != nil {
		namespaces = append(namespaces, ref.Namespace)
	}
	if w := node.Status.Witness; w != nil {
		namespaces = append(namespaces, w.Head.Namespace)
		if w.LeaseRef != nil {
			namespaces = append(namespaces, w.LeaseRef.Namespace)
		}
	}
	return namespaces
}

// A comparison is the result of comparing the witness of a Mac with its chain.
type comparison struct {
	rules.History
	head ledger.Head
}

// checkWitness compares a new witness with the chain of the Mac. An unchanged witness needs no
// check, because a chain only grows. Only the agent writes the witness.
func (p *planner) checkWitness(ctx context.Context, tx *txn.Tx, old, new *rack.MacNode) (comparison, error) {
	if !requestuser.IsAgent(ctx) {
		new.Status.Witness = old.Status.Witness
		return comparison{}, nil
	}
	head, err := chainHead(ctx, tx, new)
	if err != nil {
		return comparison{}, err
	}
	if err := showHead(ctx, tx, new, head); err != nil {
		return comparison{}, err
	}
	// A report of an earlier version, or one that is made from a MacNode of before a loss, has no
	// witness, and does not confirm the server.
	if new.Status.Witness == nil {
		return comparison{}, nil
	}
	state := ledgerOf(new)
	confirms := state.Unconfirmed
	state.Unconfirmed = false
	new.Status.Ledger = &state
	changed := positionOf(new.Status.Witness) != positionOf(old.Status.Witness)
	if !confirms && (state.Loss != nil || !changed && !lostHistory(old)) {
		return comparison{}, nil
	}
	history, err := p.judge(ctx, tx, new, head)
	if loss := state.Loss; loss != nil && position(loss.Witness.Head) == positionOf(new.Status.Witness) {
		history = rules.HistoryIntact // this loss is known
	}
	if err == nil && history == rules.HistoryIntact && state.Loss == nil {
		state.LastRecordAt = nil
	}
	return comparison{history, head}, err
}

// judge compares the witness of a Mac with its chain.
func (p *planner) judge(ctx context.Context, tx *txn.Tx, node *rack.MacNode, head ledger.Head) (rules.History, error) {
	seen := positionOf(node.Status.Witness)
	if accepted := ledgerOf(node).Accepted; accepted != nil && seen == position(*accepted) {
		return rules.HistoryIntact, nil
	}
	return rules.JudgeHistory(seen, rules.ChainPosition{Sequence: head.Sequence, Hash: head.Hash}, func() (string, error) {
		return ledger.HashAt(ctx, tx, ledger.ChassisChain(node.Spec.SerialNumber), seen.Sequence, namespacesOf(node)...)
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
