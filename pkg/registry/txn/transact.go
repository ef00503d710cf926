package txn

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// noObject is the key, below the prefix of all keys, that replaces the main object in a transaction
// without one. Nothing is ever stored there.
const noObject = "macrack.io/none"

// Transact commits the writes that plan adds to a transaction without a main object. plan is called
// repeatedly and may return an error, as a [Planner].
func (b *Backend) Transact(ctx context.Context, plan func(ctx context.Context, tx *Tx) error) error {
	s := b.anyStore()
	if s == nil {
		return errors.New("txn: the backend has no planned resource yet")
	}
	alone := &store{
		backend:  b,
		resource: &resource{gr: schema.GroupResource{Resource: "objects"}, root: s.resource.root},
		client:   s.client,
		planner:  func(ctx context.Context, tx *Tx, _, _ runtime.Object) error { return plan(ctx, tx) },
	}
	key := s.resource.root + noObject
	return alone.retryKey(ctx, "write", key, func(ctx context.Context, tx *Tx) error {
		if _, err := alone.propose(ctx, tx, 0, nil, nil); err != nil {
			return err
		}
		if len(tx.written()) == 0 {
			if tx.stale {
				tx.fresh = true // confirm that no write is needed
				return &conflictError{}
			}
			return nil
		}
		resp, err := s.client.commit(ctx, tx, 0, false)
		if err == nil && !resp.Succeeded {
			err = fmt.Errorf("txn: %s exists", key)
		}
		return err
	})
}

func (b *Backend) anyStore() *store {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, r := range b.resources {
		if s := r.store.Load(); s != nil {
			return s
		}
	}
	return nil
}
