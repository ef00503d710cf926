// Package fleetclock prevents a server with a wrong clock from shortening a lease. Each replica
// writes its time to etcd every few seconds. A lease begins when it has begun by the clocks of all
// live replicas, and its floor has passed when it has passed by all of them. Clock skew therefore
// lengthens leases, which complies with the licence, and is logged.
//
// The readings also reveal that etcd was restored from a backup: a replica finds an older reading
// of its own than it has written, or a starting replica finds no reading of a live replica.
package fleetclock

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// interval is the interval at which a replica writes its time.
	interval = 5 * time.Second

	// missedBeats is the number of unchanged readings after which a replica is considered dead.
	missedBeats = 6

	// Tolerance is the maximum difference between the readings of synchronized clocks.
	Tolerance = 2 * interval

	indexKind, indexID = "clock", "fleet"
)

// A Tx reads and writes index keys in a transaction.
type Tx interface {
	GetKey(ctx context.Context, kind, id string) (value []byte, exists bool, err error)
	PutKey(kind, id string, value []byte) error
}

// A Clock is the part of one replica in the clock of the fleet.
type Clock struct {
	id    string
	clock clock.WithTicker

	beat   int64
	others map[string]observed
	// published is the last beat that this replica has written.
	published atomic.Int64
	withdrawn atomic.Bool
	joined    chan struct{}
	join      sync.Once
}

// observed is the last beat of another replica and the number of times that it was found unchanged.
// skew is the difference between the clocks when the beat was new.
type observed struct {
	beat, again int64
	skew        time.Duration
}

// A reading is the time written by a replica.
type reading struct {
	Time time.Time `json:"time"`
	Beat int64     `json:"beat"`
}

// New returns the Clock of a replica with the given clock.
func New(clock clock.WithTicker) *Clock {
	return &Clock{id: string(uuid.NewUUID()), clock: clock, others: map[string]observed{}, joined: make(chan struct{})}
}

// Joined returns a channel that is closed when the replica has written its time for the first time.
// By then, it has noticed whether etcd may have been restored from a backup.
func (c *Clock) Joined() <-chan struct{} { return c.joined }

// Earliest returns now, or the time of the slowest replica if that is earlier. This includes the
// replica's own clock, because now may come from a record that a faster replica has written.
func (c *Clock) Earliest(ctx context.Context, tx Tx, now time.Time) (time.Time, error) {
	readings, err := read(ctx, tx)
	if err != nil {
		return time.Time{}, err
	}
	for id, r := range readings {
		if id != c.id && r.Time.Before(now) {
			now = r.Time
		}
	}
	if own := c.clock.Now(); own.Before(now) {
		now = own
	}
	return now, nil
}

// Latest returns now, or the time of the fastest replica if that is later: a lease that begins then
// has not begun earlier by any clock. It fails if another replica is ahead of this one by more than
// Tolerance, because one of the two clocks is wrong and the start of the lease would be, too. It
// also fails before this replica has joined the others.
func (c *Clock) Latest(ctx context.Context, tx Tx, now time.Time) (time.Time, error) {
	published := c.published.Load() // before the readings, as the next one may be written meanwhile
	readings, err := read(ctx, tx)
	if err != nil {
		return time.Time{}, err
	}
	if published == 0 {
		return time.Time{}, apierrors.NewServiceUnavailable("this API server has just started; try again")
	}
	if own, ok := readings[c.id]; c.lost(published, own, ok) {
		return time.Time{}, apierrors.NewServiceUnavailable("etcd was restored to an earlier state; no Mac is leased until its agent has reported again")
	}
	for id, r := range readings {
		if id == c.id {
			continue
		}
		if d := r.Time.Sub(c.clock.Now()); d > Tolerance {
			return time.Time{}, apierrors.NewServiceUnavailable(fmt.Sprintf("the clocks of the API servers disagree by %s, and no Mac is leased until they agree; check their NTP", d.Round(time.Second)))
		}
		if r.Time.After(now) {
			now = r.Time
		}
	}
	return now, nil
}

// lost reports whether etcd has lost a reading that this replica has published.
func (c *Clock) lost(published int64, own reading, exists bool) bool {
	return published > 0 && !c.withdrawn.Load() && (!exists || own.Beat < published)
}

// continuous reports whether a live replica has used etcd until now: this one, or another with a
// recent reading. Otherwise, etcd may have been restored from a backup in between.
func (c *Clock) continuous(ctx context.Context, tx Tx) (bool, error) {
	published := c.published.Load()
	readings, err := read(ctx, tx)
	if err != nil {
		return false, err
	}
	if own, exists := readings[c.id]; published > 0 {
		return !c.lost(published, own, exists), nil
	}
	for _, r := range readings {
		if c.clock.Now().Sub(r.Time).Abs() <= Tolerance {
			return true, nil
		}
	}
	return false, nil
}

// Transact commits the writes that a function plans. The function is called again after a conflict.
type Transact func(context.Context, func(context.Context, Tx) error) error

// Run writes the time to etcd, with transact, until ctx is done. Then it removes the time. It calls
// restored before it writes, if etcd may have been restored from a backup.
func (c *Clock) Run(ctx context.Context, transact Transact, restored func(context.Context) error) {
	ticker := c.clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := c.Tick(ctx, transact, restored); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to write the time to etcd")
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interval)
			defer cancel()
			c.withdrawn.Store(true)
			_ = transact(ctx, c.withdraw) // on failure, others detect the stale time
			return
		}
	}
}

// Tick writes the time to etcd, with transact. It calls restored before, if etcd may have been
// restored from a backup.
func (c *Clock) Tick(ctx context.Context, transact Transact, restored func(context.Context) error) error {
	if err := c.checkContinuity(ctx, transact, restored); err != nil {
		return err
	}
	c.beat++
	var seen map[string]observed
	err := transact(ctx, func(ctx context.Context, tx Tx) (err error) {
		seen, err = c.publish(ctx, tx)
		return err
	})
	if err == nil {
		c.others = seen
		skew.Set(largestSkew(seen).Seconds())
		c.published.Store(c.beat)
		c.join.Do(func() { close(c.joined) })
	}
	return err
}

// largestSkew returns the largest difference between the clock of this replica and another one.
func largestSkew(others map[string]observed) (largest time.Duration) {
	for _, o := range others {
		largest = max(largest, o.skew)
	}
	return largest
}

// checkContinuity calls restored if etcd may have been restored from a backup.
func (c *Clock) checkContinuity(ctx context.Context, transact Transact, restored func(context.Context) error) error {
	ok := true
	if err := transact(ctx, func(ctx context.Context, tx Tx) (err error) {
		ok, err = c.continuous(ctx, tx)
		return err
	}); err != nil || ok {
		return err
	}
	return restored(ctx)
}

// publish writes this replica's time and removes dead replicas. It returns its observations of the
// others, which are valid only if the transaction succeeds: while etcd is unreachable, no replica
// can write.
func (c *Clock) publish(ctx context.Context, tx Tx) (map[string]observed, error) {
	readings, err := read(ctx, tx)
	if err != nil {
		return nil, err
	}
	now, seen := c.clock.Now(), map[string]observed{}
	for id, r := range readings {
		if id == c.id {
			continue
		}
		last, ok := c.others[id]
		if !ok || last.beat != r.Beat {
			d := now.Sub(r.Time).Abs()
			seen[id] = observed{beat: r.Beat, skew: d}
			if d > Tolerance {
				klog.FromContext(ctx).Info("API server clocks disagree; bindings may be refused and releases are delayed", "difference", d.Round(time.Second))
			}
			continue
		}
		last.again++
		if last.again >= missedBeats {
			delete(readings, id)
			continue
		}
		seen[id] = last
	}
	readings[c.id] = reading{Time: now.UTC(), Beat: c.beat}
	return seen, write(tx, readings)
}

func (c *Clock) withdraw(ctx context.Context, tx Tx) error {
	readings, err := read(ctx, tx)
	if err != nil {
		return err
	}
	delete(readings, c.id)
	return write(tx, readings)
}

func read(ctx context.Context, tx Tx) (map[string]reading, error) {
	readings := map[string]reading{}
	value, exists, err := tx.GetKey(ctx, indexKind, indexID)
	if err != nil || !exists {
		return readings, err
	}
	return readings, json.Unmarshal(value, &readings)
}

func write(tx Tx, readings map[string]reading) error {
	value, err := json.Marshal(readings)
	if err != nil {
		return err
	}
	return tx.PutKey(indexKind, indexID, value)
}
