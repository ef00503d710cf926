package txn_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"macrack.io/macrack/pkg/registry/txn"
)

func TestTransact(t *testing.T) {
	etcd, servers := newLease(t, 2)
	lease := mustGet(t, cluster, servers[0].Leases, "lease").(*Lease)
	// Both servers append to a chain, and neither loses a record.
	const each = 20
	var wg sync.WaitGroup
	for i := range 4 {
		b := servers[i%2].Backend
		wg.Go(func() {
			for range each {
				if err := b.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return record(ctx, tx, "update", "lease", lease) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if st, _ := replay(t, etcd); len(st.records) != 4*each || st.chains["lease"] != 4*each {
		t.Errorf("%d records", len(st.records))
	}
	b := servers[0].Backend
	before := revision(t, etcd)
	no := apierrors.NewForbidden(Records, "x", errors.New("no"))
	if err := b.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
		return errors.Join(record(ctx, tx, "update", "lease", lease), no)
	}); !apierrors.IsForbidden(err) {
		t.Errorf("refused: %v", err)
	}
	if err := b.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return tx.Get(ctx, Leases, "", "lease", &Lease{}) }); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
}

// TestTransactStale checks that a plan without writes is repeated if it read from a watch cache.
func TestTransactStale(t *testing.T) {
	_, servers := newLease(t, 2)
	freezeLease(t, servers[0])
	if _, err := change(cluster, servers[1].Leases, "lease", func(l *Lease) { l.Labels = map[string]string{"a": "b"} }); err != nil {
		t.Fatal(err)
	}
	if err := servers[0].Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
		lease := &Lease{}
		if err := tx.Get(ctx, Leases, "", "lease", lease); err != nil || lease.Labels == nil {
			return err
		}
		lease.Labels = nil
		return tx.Update(ctx, Leases, lease)
	}); err != nil {
		t.Fatal(err)
	}
	if l := mustGet(t, cluster, servers[0].Leases, "lease").(*Lease); l.Labels != nil {
		t.Errorf("labels %v", l.Labels)
	}
}
