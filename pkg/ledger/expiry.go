package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// ExpiryInterval is the interval between searches for expired records. They are deleted one
// interval after they were found, when all reports that started before their checkpoint have
// finished.
const ExpiryInterval = 6 * time.Hour

// firstLook is the delay of the first search after the start of a server. A random part of up to
// the same length is added, so that servers that start together do not search at once. The delay is
// short so that servers that never run for an ExpiryInterval also search.
const firstLook = 2 * time.Minute

// expiryKind is the kind of the index key with the time of the last search, in seconds since 1970.
const expiryKind = "ledger-expiry"

// ExpiryTx has the methods of a transaction that expiry needs.
type ExpiryTx interface {
	ReadingTx
	// Delete makes the transaction delete an object that Get has read.
	Delete(resource schema.GroupResource, obj runtime.Object) error
}

// An Expirer deletes records older than the retention period, behind checkpoints that prove them.
// It makes checkpoints only of records that it has verified. A broken chain keeps all records from
// the break on, as evidence.
type Expirer struct {
	Clock clock.Clock
	// Earliest, if set, returns the time of the slowest clock of all servers, so that a server with
	// a fast clock does not expire records early.
	Earliest func(ctx context.Context, tx Tx, now time.Time) (time.Time, error)
	// Retention returns the retention period. The minimum is 90 days.
	Retention func(ctx context.Context) (time.Duration, error)
	Records   RecordSource
	// Anchors returns the checkpoints.
	Anchors func(ctx context.Context) (Anchors, error)
	// Transact commits what plan adds to a transaction.
	Transact func(ctx context.Context, plan func(ctx context.Context, tx ExpiryTx) error) error
}

// Run expires records until ctx ends. Only one server at a time does so.
func (e *Expirer) Run(ctx context.Context) {
	for after := wait.Jitter(firstLook, 1); ; after = ExpiryInterval {
		timer := e.Clock.NewTimer(after)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		now, mine, err := e.claim(ctx)
		if err == nil && mine {
			err = e.expire(ctx, now)
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to expire all records older than the retention period; will retry", "after", ExpiryInterval)
		}
	}
}

// claim returns the current time, and whether this server may search: no other server has done so
// recently.
func (e *Expirer) claim(ctx context.Context) (now time.Time, mine bool, err error) {
	const id = "last"
	err = e.Transact(ctx, func(ctx context.Context, tx ExpiryTx) error {
		mine = false
		value, _, err := tx.GetKey(ctx, expiryKind, id)
		if err != nil {
			return err
		}
		now = e.Clock.Now()
		if e.Earliest != nil {
			if now, err = e.Earliest(ctx, tx, now); err != nil {
				return err
			}
		}
		if last, err := strconv.ParseInt(string(value), 10, 64); err == nil && now.Sub(time.Unix(last, 0)).Abs() < ExpiryInterval*9/10 {
			return nil
		}
		mine = true
		return tx.PutKey(expiryKind, id, strconv.AppendInt(nil, now.Unix(), 10))
	})
	return now, mine, err
}

// An expiringChain is a chain with its last verified record that can be expired.
type expiringChain struct {
	checkpoint int64  // the sequence number of the previous checkpoint
	hash       string // of the last record that can be expired
	last       *rack.AuditRecord
	stopped    bool
}

// expire deletes the records before earlier checkpoints, and makes new checkpoints.
func (e *Expirer) expire(ctx context.Context, now time.Time) error {
	retention, err := e.Retention(ctx)
	if err != nil {
		return err
	}
	anchors, err := e.Anchors(ctx)
	if err != nil {
		return err
	}
	until := now.Add(-max(retention, rules.MinimumAuditRetention))
	chains := map[string]*expiringChain{}
	var errs []error
	deleted := 0
	err = e.Records(ctx, func(record *rack.AuditRecord) error {
		name, sequence, ok := SplitName(record.Name)
		if !ok {
			return nil
		}
		c := chains[name]
		if c == nil {
			c = &expiringChain{}
			if checkpoint := anchors[name].Checkpoint; checkpoint != nil {
				c.checkpoint, c.hash = checkpoint.Sequence, checkpoint.Hash
			}
			chains[name] = c
		}
		switch {
		case c.stopped:
		case sequence <= c.checkpoint:
			if err := e.delete(ctx, record); err != nil { // In order: a failure must not leave a gap.
				c.stopped = true
				errs = append(errs, err)
			} else {
				deleted++
			}
		case !record.Time.Time.Before(until):
			c.stopped = true
		case record.PreviousHash != c.hash || record.Hash != Hash(record) || Chain(record) != name:
			c.stopped = true
			errs = append(errs, fmt.Errorf("ledger: chain %s is broken at %s; records from there on are kept as evidence", name, nameIn(record)))
		default:
			c.hash = record.Hash
			c.last = record.DeepCopy()
		}
		return ctx.Err()
	})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	signed := 0
	for _, c := range chains {
		if c.last == nil {
			continue
		}
		err := e.Transact(ctx, func(ctx context.Context, tx ExpiryTx) error { return Checkpoint(ctx, tx, c.last) })
		if err != nil {
			errs = append(errs, err)
		} else {
			signed++
		}
	}
	klog.FromContext(ctx).V(2).Info("Expired records", "until", until, "deleted", deleted, "checkpoints", signed)
	return errors.Join(errs...)
}

func (e *Expirer) delete(ctx context.Context, record *rack.AuditRecord) error {
	return e.Transact(ctx, func(ctx context.Context, tx ExpiryTx) error {
		stored := &rack.AuditRecord{}
		err := tx.Get(ctx, auditRecords, record.Namespace, record.Name, stored)
		if apierrors.IsNotFound(err) {
			return nil // Another server has deleted it.
		}
		if err != nil {
			return err
		}
		return tx.Delete(auditRecords, stored)
	})
}
