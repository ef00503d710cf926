// Package fleetclock keeps a server whose clock is fast from ending a lease early. Each replica leaves its time
// in etcd every few seconds; a floor has passed when it has passed for every replica that is alive. A slow clock
// makes releases late, which harms nobody's licence, and says so in the log.
package fleetclock

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// interval is how often a replica leaves its time.
	interval = 5 * time.Second

	// missedBeats is how many times a replica must have been found as it was before it counts as dead.
	missedBeats = 6

	// tolerance is how far clocks may be apart before it is worth a warning.
	tolerance = 2 * interval

	indexKind, indexID = "clock", "fleet"
)

// A Tx reads and writes index keys in a transaction.
type Tx interface {
	GetKey(ctx context.Context, kind, id string) (value []byte, exists bool, err error)
	PutKey(kind, id string, value []byte) error
}

// A Clock is one replica's part in the fleet's clock.
type Clock struct {
	id    string
	clock clock.WithTicker

	beat   int64
	others map[string]observed
}

// observed is the last beat of another replica, and at which beat of this one it was new.
type observed struct{ beat, at int64 }

// A reading is what a replica left.
type reading struct {
	Time time.Time `json:"time"`
	Beat int64     `json:"beat"`
}

// New returns the part of a replica that goes by clock.
func New(clock clock.WithTicker) *Clock {
	return &Clock{id: string(uuid.NewUUID()), clock: clock, others: map[string]observed{}}
}

// Earliest returns now, or the time of the slowest other replica if that is earlier.
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
	return now, nil
}

// Run leaves the time in etcd, with transact, until ctx is done, and takes it back then.
func (c *Clock) Run(ctx context.Context, transact func(context.Context, func(context.Context, Tx) error) error) {
	ticker := c.clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		c.beat++
		if err := transact(ctx, c.leave); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Cannot leave the time in etcd", "err", err)
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), interval)
			defer cancel()
			_ = transact(ctx, c.takeBack) // or others find out by and by
			return
		}
	}
}

// leave writes this replica's time, and removes replicas that are dead.
func (c *Clock) leave(ctx context.Context, tx Tx) error {
	readings, err := read(ctx, tx)
	if err != nil {
		return err
	}
	now := c.clock.Now()
	for id, r := range readings {
		if id == c.id {
			continue
		}
		last, ok := c.others[id]
		switch {
		case !ok || last.beat != r.Beat:
			c.others[id] = observed{beat: r.Beat, at: c.beat}
			if d := now.Sub(r.Time).Abs(); d > tolerance {
				klog.FromContext(ctx).Info("Clocks of API servers disagree; Macs are released when the slower one says so", "by", d.Round(time.Second))
			}
		case c.beat-last.at >= missedBeats:
			delete(readings, id)
		}
	}
	readings[c.id] = reading{Time: now.UTC(), Beat: c.beat}
	return write(tx, readings)
}

func (c *Clock) takeBack(ctx context.Context, tx Tx) error {
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
