package txn

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// maxLine is the maximum number of writes of one flow that wait for one key.
const maxLine = 512

// turns are the queues of writes that wait for keys. Writes of one process to the same key take
// turns, because otherwise they would conflict. The first in a queue has its turn; its channel may
// be open or closed, those of the others are open.
//
// Flows share a queue fairly: a write is queued behind those of other flows only if they arrived
// earlier and have had as few turns. A user who keeps a queue full therefore delays the single
// write of an agent by one turn only.
type turns struct {
	mu    sync.Mutex
	lines map[string][]turn
}

// A turn is a place in the queue for a key.
type turn struct {
	key   string
	flow  string
	round int // the queue is sorted by it; the writes of one flow have different rounds
	ready chan struct{}
}

func newTurns() *turns { return &turns{lines: map[string][]turn{}} }

// claim takes the turn of tx at the keys that it writes if their queues are empty. Otherwise it
// returns false.
func (q *turns) claim(tx *Tx) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	var claimed []turn
	for _, key := range tx.exclusive() {
		switch {
		case slices.ContainsFunc(tx.turn, func(t turn) bool { return t.key == key }):
		case len(q.lines[key]) > 0:
			return false
		default:
			claimed = append(claimed, turn{key: key, flow: tx.flow, ready: make(chan struct{})})
		}
	}
	for _, t := range claimed {
		q.lines[t.key] = []turn{t}
	}
	tx.turn = append(tx.turn, claimed...)
	return true
}

// wait queues tx for the keys that it writes, and returns when tx has its turn at all of them. It
// first gives up the turns that tx has. All writes wait for keys in the same order, so they cannot
// deadlock.
func (q *turns) wait(ctx context.Context, tx *Tx) error {
	q.leave(tx)
	keys := tx.exclusive()
	slices.Sort(keys)
	patient, cancel := context.WithDeadline(ctx, tx.deadline)
	defer cancel()
	for _, key := range keys {
		t, err := q.take(patient, key, tx.flow)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return errTooManyConflicts(tx.main.gr, "write")
		}
		if err != nil {
			return err
		}
		tx.turn = append(tx.turn, t)
	}
	return nil
}

// take waits for the turn of a flow at a key.
func (q *turns) take(ctx context.Context, key, flow string) (turn, error) {
	t, first, err := q.join(key, flow)
	if err != nil || first {
		return t, err
	}
	select {
	case <-t.ready:
		return t, nil
	case <-ctx.Done():
		q.release(t)
		return turn{}, ctx.Err()
	}
}

// join adds a turn by start-time fair queuing: the round of a write is the current round of the
// queue, or the round after that of the last queued write of its flow.
func (q *turns) join(key, flow string) (t turn, first bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t = turn{key: key, flow: flow, ready: make(chan struct{})}
	line := q.lines[key]
	if len(line) > 0 {
		t.round = line[0].round
	}
	waiting := 0
	for _, other := range line {
		if other.flow == flow {
			t.round = other.round + 1
			waiting++
		}
	}
	if waiting >= maxLine {
		return turn{}, false, errLineTooLong
	}
	at := len(line)
	for at > 1 && line[at-1].round > t.round { // never before the first, which has its turn
		at--
	}
	q.lines[key] = slices.Insert(line, at, t)
	return t, len(line) == 0, nil
}

// leave removes tx from all queues and gives the next writes their turn.
func (q *turns) leave(tx *Tx) {
	q.release(tx.turn...)
	tx.turn = nil
}

// release removes turns from their queues and gives the next writes their turn.
func (q *turns) release(turns ...turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range turns {
		line := q.lines[t.key]
		i := slices.IndexFunc(line, func(other turn) bool { return other.ready == t.ready })
		line = slices.Delete(line, i, i+1)
		q.lines[t.key] = line
		if len(line) == 0 {
			delete(q.lines, t.key)
		} else if i == 0 {
			close(line[0].ready)
		}
	}
}
