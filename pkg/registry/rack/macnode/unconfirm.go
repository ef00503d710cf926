package macnode

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
)

// Unconfirm requires the agents of all Macs to report their witnesses again, because etcd may have
// been restored from a backup. Until then, no lease is bound to their Macs.
func Unconfirm(ctx context.Context, backend *txn.Backend, clock clock.PassiveClock) error {
	nodes, err := backend.Keys(ctx, IndexSerialNumber)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range nodes {
		try := func(readsRecord bool) error {
			return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
				return unconfirm(ctx, tx, string(name), readsRecord, clock.Now())
			})
		}
		err := try(true)
		var undecodable *txn.DecodeError
		if errors.As(err, &undecodable) { // the MacNode, or the last record of its chain
			err = try(false)
		}
		if errors.As(err, &undecodable) { // no lease can be bound to it
			klog.FromContext(ctx).Error(err, "MacNode cannot be decoded; it is not required to report", "node", string(name))
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unconfirm requires the agent of one Mac to report. It reads the last record of its chain only if
// readsRecord is set.
func unconfirm(ctx context.Context, tx *txn.Tx, name string, readsRecord bool, now time.Time) error {
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
	head, err := chainHead(ctx, tx, node)
	if errors.Is(err, ledger.ErrNotHead) { // no agent can confirm it
		klog.FromContext(ctx).Error(err, "Head of the chain cannot be decoded", "node", name)
	} else if err != nil {
		return err
	}
	if readsRecord {
		if err := showHead(ctx, tx, node, head); err != nil {
			return err
		}
	}
	state = ledgerOf(node)
	if head.Sequence > 0 {
		state.LastRecordAt = ptr.To(metav1.NewTime(head.Time.Truncate(time.Second)))
	}
	state.Unconfirmed, node.Status.Witness = true, nil
	node.Status.Ledger = &state
	Derive(node, now)
	return tx.Update(ctx, Resource, node)
}
