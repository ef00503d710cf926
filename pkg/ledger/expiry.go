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

// ExpiryInterval is how often records past their retention are looked for. What is found is deleted one interval later,
// by when every report that has not seen its checkpoint is over.
const ExpiryInterval = 6 * time.Hour

// firstLook is how long after its start a server looks first, or up to twice as long, so that servers that start
// together do not all at once: also one that never runs for an ExpiryInterval has its turn.
const firstLook = 2 * time.Minute

// expiryKind is the kind of the index key that says, in seconds since 1970, when records were last looked for.
const expiryKind = "ledger-expiry"

// ExpiryTx is what expiry needs of a transaction.
type ExpiryTx interface {
	ReadingTx
	// Delete makes the transaction delete an object that Get has read.
	Delete(resource schema.GroupResource, obj runtime.Object) error
}

// An Expirer deletes the records that are past their retention, behind checkpoints that vouch for them: it signs
// off only what it has verified. A chain that is broken keeps all records from the break on, as evidence.
type Expirer struct {
	Clock clock.Clock
	// Earliest, if set, returns the time by the slowest clock of all servers, so that a fast one expires nothing early.
	Earliest func(ctx context.Context, tx Tx, now time.Time) (time.Time, error)
	// Retention returns for how long records are kept. No less than 90 days count.
	Retention func(ctx context.Context) (time.Duration, error)
	Records   RecordSource
	// Anchors returns the checkpoints.
	Anchors func(ctx context.Context) (Anchors, error)
	// Transact commits what plan adds to a transaction.
	Transact func(ctx context.Context, plan func(ctx context.Context, tx ExpiryTx) error) error
}

// Run expires records until ctx ends. Of several servers, one at a time does.
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
			klog.FromContext(ctx).Error(err, "Could not expire all records that are past their retention; will try again", "after", ExpiryInterval)
		}
	}
}

// claim says what time it is, and whether it is this server's turn: no other has looked for records lately.
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

// An expiringChain is a chain with the last of its records that can be signed off.
type expiringChain struct {
	checkpoint int64  // the sequence number of the last record that was signed off before
	hash       string // of the last that is
	last       *rack.AuditRecord
	stopped    bool
}

// expire deletes what earlier checkpoints vouch for, and makes new ones.
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
			if err := e.delete(ctx, record); err != nil { // The oldest go first, or none.
				c.stopped = true
				errs = append(errs, err)
			} else {
				deleted++
			}
		case !record.Time.Time.Before(until):
			c.stopped = true
		case record.PreviousHash != c.hash || record.Hash != Hash(record) || Chain(record) != name:
			c.stopped = true
			errs = append(errs, fmt.Errorf("ledger: chain %s is broken at %s: it is kept from there on", name, nameIn(record)))
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
			return nil // Another server was here.
		}
		if err != nil {
			return err
		}
		return tx.Delete(auditRecords, stored)
	})
}
