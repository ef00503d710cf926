package txn

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	// maxAttempts bounds how often one write is tried.
	maxAttempts = 40

	// patience bounds how long one write waits for its turn in all.
	patience = 5 * time.Second

	// maxLine bounds how many writes wait for one key.
	maxLine = 512
)

// retry tries a write until it meets no conflict. Only conflicts are tried
// again, as nothing has been written then.
func (s *store) retry(ctx context.Context, operation, path string, write func(context.Context, *Tx) error) error {
	key, err := s.resource.key(path)
	if err != nil {
		return err
	}
	return s.retryKey(ctx, operation, key, write)
}

func (s *store) retryKey(ctx context.Context, operation, key string, write func(context.Context, *Tx) error) error {
	start := time.Now()
	tx := &Tx{domain: s.domain, client: s.client, main: s.resource, mainKey: key}
	ctx = context.WithValue(ctx, contextKey{}, tx)
	attempt := 1
	defer func() {
		s.domain.turns.leave(tx.turn)
		retries.Observe(float64(attempt - 1))
		duration.WithLabelValues(s.resource.gr.String(), operation).Observe(time.Since(start).Seconds())
	}()
	for ; ; attempt++ {
		err := write(ctx, tx)
		var conflict *conflictError
		if !errors.As(err, &conflict) {
			return err
		}
		if !conflict.early {
			conflicts.WithLabelValues(s.resource.gr.String()).Inc()
		}
		if attempt == maxAttempts || time.Since(start) > patience {
			klog.FromContext(ctx).V(2).Info("Gave up a write that kept meeting conflicts", "key", key, "operation", operation, "attempts", attempt, "conflict", conflict.keys)
			return errTooManyConflicts(s.resource.gr, operation)
		}
		if err := tx.await(ctx, conflict, attempt); err != nil {
			return err
		}
	}
}

// await waits until trying again is worth it.
func (t *Tx) await(ctx context.Context, conflict *conflictError, attempt int) error {
	if conflict.early {
		t.next = nil // will be too old
		if conflict.inLine {
			return t.domain.turns.take(ctx, t, t.written())
		}
		return nil
	}
	// A write of another process has got ahead. That is no reason to wait, as
	// what the failed commit found is as new as can be, unless it goes on.
	t.fresh = true
	if attempt <= 3 {
		return nil
	}
	t.next = nil
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rand.N(time.Millisecond << min(attempt-2, 6))): // up to 4, 8, ... 64 ms
		return nil
	}
}

// turns are the lines of writes that wait for keys. Writes of one process that
// write the same companion take turns at it, from before the commit until they
// are done, as they would only conflict. The first of a line has its turn; its
// channel may be open or closed, those of the others are open.
type turns struct {
	mu    sync.Mutex
	lines map[string][]chan struct{}
}

// A turn is a place in the line for a key.
type turn struct {
	key   string
	ready chan struct{}
}

// claim takes tx's turn at the companions that it writes if nobody is in line.
// If somebody is, it returns a conflict, before it comes to one.
func (q *turns) claim(tx *Tx) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var claimed []turn
	for _, key := range tx.written() {
		switch {
		case slices.ContainsFunc(tx.turn, func(t turn) bool { return t.key == key }):
		case len(q.lines[key]) > 0:
			return &conflictError{keys: []string{key}, early: true, inLine: true}
		default:
			claimed = append(claimed, turn{key, make(chan struct{})})
		}
	}
	for _, t := range claimed {
		q.lines[t.key] = []chan struct{}{t.ready}
	}
	tx.turn = append(tx.turn, claimed...)
	return nil
}

// take waits for tx's turn at keys. It gives up those that tx has: as all
// writes wait for keys in the same order, none waits for another in a circle.
func (q *turns) take(ctx context.Context, tx *Tx, keys []string) error {
	q.leave(tx.turn)
	tx.turn = nil
	slices.Sort(keys)
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, key := range keys {
		t := turn{key, make(chan struct{})}
		first, err := q.join(t)
		if err != nil {
			return err
		}
		tx.turn = append(tx.turn, t)
		if first {
			continue
		}
		select {
		case <-t.ready:
		case <-patient.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errTooManyConflicts(tx.main.gr, "write")
		}
	}
	return nil
}

func (q *turns) join(t turn) (first bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.lines[t.key]
	if len(line) >= maxLine {
		return false, errLineTooLong
	}
	q.lines[t.key] = append(line, t.ready)
	return len(line) == 0, nil
}

// leave takes places out of their lines, and lets the next ones have their turn.
func (q *turns) leave(places []turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range places {
		line := q.lines[t.key]
		i := slices.Index(line, t.ready)
		line = slices.Delete(line, i, i+1)
		q.lines[t.key] = line
		if len(line) == 0 {
			delete(q.lines, t.key)
		} else if i == 0 {
			close(line[0])
		}
	}
}
