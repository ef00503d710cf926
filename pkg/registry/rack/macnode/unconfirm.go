package macnode

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
)

// Unconfirm requires the agents of all Macs to report their witnesses again, because etcd may have
// been restored from a backup. Until then, no lease is bound to their Macs.
func Unconfirm(ctx context.Context, backend *txn.Backend) error {
	nodes, err := backend.Keys(ctx, IndexSerialNumber)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range nodes {
		errs = append(errs, backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return unconfirm(ctx, tx, string(name)) }))
	}
	return errors.Join(errs...)
}

func unconfirm(ctx context.Context, tx *txn.Tx, name string) error {
	node := &rack.MacNode{}
	if err := tx.Get(ctx, Resource, "", name, node); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	state := ledgerOf(node)
	if state.Unconfirmed || node.Status.Hardware == nil { // no agent has reported yet, so the Mac is Pending
		return nil
	}
	head, err := ledger.ReadHead(ctx, tx, ledger.ChassisChain(node.Spec.SerialNumber))
	if err != nil {
		return err
	}
	if state.Head.Sequence != head.Sequence { // a server of an earlier version has written records
		state.Head = rack.ChainPosition{Sequence: head.Sequence, Hash: head.Hash}
	}
	state.Unconfirmed, node.Status.Witness = true, nil
	node.Status.Ledger = &state
	DerivePhase(node)
	return tx.Update(ctx, Resource, node)
}
