package txn

import (
	"context"
	"slices"
	"sync"
)

// maxLine bounds how many writes wait for one key.
const maxLine = 512

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

// claim takes tx's turn at the companions that it writes if nobody is in line
// for them. Otherwise it returns false.
func (q *turns) claim(tx *Tx) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	var claimed []turn
	for _, key := range tx.written() {
		switch {
		case slices.ContainsFunc(tx.turn, func(t turn) bool { return t.key == key }):
		case len(q.lines[key]) > 0:
			return false
		default:
			claimed = append(claimed, turn{key, make(chan struct{})})
		}
	}
	for _, t := range claimed {
		q.lines[t.key] = []chan struct{}{t.ready}
	}
	tx.turn = append(tx.turn, claimed...)
	return true
}

// wait gets in line for the companions that tx writes, until it is its turn at
// all of them. It gives up those that tx has: as all writes wait for keys in
// the same order, none waits for another in a circle.
func (q *turns) wait(ctx context.Context, tx *Tx) error {
	q.leave(tx)
	keys := tx.written()
	slices.Sort(keys)
	patient, cancel := context.WithDeadline(ctx, tx.deadline)
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

// leave takes tx out of all lines, and lets the next ones have their turn.
func (q *turns) leave(tx *Tx) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tx.turn {
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
	tx.turn = nil
}
