package txn

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// maxQueue is the maximum number of writes of one flow that wait for one key.
const maxQueue = 512

// keyLocks are the locks of keys, each with a wait queue. Writes of one process to the same key
// take its lock in turn, because otherwise they would conflict.
//
// Flows share a queue fairly: a write is queued behind those of other flows only if they arrived
// earlier and have had the lock as few times. A user who keeps a queue full therefore delays the
// single write of an agent by one write only.
type keyLocks struct {
	mu     sync.Mutex
	queues map[string][]keyLock
}

// A keyLock is the place of a write in the wait queue of a key. The first in the queue holds the
// lock; its channel may be open or closed, those of the others are open.
type keyLock struct {
	key   string
	flow  string
	round int // the queue is sorted by it; the writes of one flow have different rounds
	ready chan struct{}
}

func newKeyLocks() *keyLocks { return &keyLocks{queues: map[string][]keyLock{}} }

// tryLock locks the keys that tx writes if their queues are empty. Otherwise it returns false.
func (k *keyLocks) tryLock(tx *Tx) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	var locked []keyLock
	for _, key := range tx.exclusive() {
		switch {
		case slices.ContainsFunc(tx.locks, func(l keyLock) bool { return l.key == key }):
		case len(k.queues[key]) > 0:
			return false
		default:
			locked = append(locked, keyLock{key: key, flow: tx.flow, ready: make(chan struct{})})
		}
	}
	for _, l := range locked {
		k.queues[l.key] = []keyLock{l}
	}
	tx.locks = append(tx.locks, locked...)
	return true
}

// lock waits for the locks of all keys that tx writes. It first releases the locks that tx has. All
// writes wait for keys in the same order, so they cannot deadlock.
func (k *keyLocks) lock(ctx context.Context, tx *Tx) error {
	k.unlock(tx)
	keys := tx.exclusive()
	slices.Sort(keys)
	patient, cancel := context.WithDeadline(ctx, tx.deadline)
	defer cancel()
	for _, key := range keys {
		l, err := k.lockKey(patient, key, tx.flow)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return errTooManyConflicts(tx.main.gr, "write")
		}
		if err != nil {
			return err
		}
		tx.locks = append(tx.locks, l)
	}
	return nil
}

// lockKey waits for the lock of a key, as a write of a flow.
func (k *keyLocks) lockKey(ctx context.Context, key, flow string) (keyLock, error) {
	l, first, err := k.enqueue(key, flow)
	if err != nil || first {
		return l, err
	}
	select {
	case <-l.ready:
		return l, nil
	case <-ctx.Done():
		k.release(l)
		return keyLock{}, ctx.Err()
	}
}

// enqueue adds a write to a queue by start-time fair queuing: its round is the current round of the
// queue, or the round after that of the last queued write of its flow.
func (k *keyLocks) enqueue(key, flow string) (l keyLock, first bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l = keyLock{key: key, flow: flow, ready: make(chan struct{})}
	queue := k.queues[key]
	if len(queue) > 0 {
		l.round = queue[0].round
	}
	waiting := 0
	for _, other := range queue {
		if other.flow == flow {
			l.round = other.round + 1
			waiting++
		}
	}
	if waiting >= maxQueue {
		return keyLock{}, false, errQueueFull
	}
	at := len(queue)
	for at > 1 && queue[at-1].round > l.round { // never before the first, which holds the lock
		at--
	}
	k.queues[key] = slices.Insert(queue, at, l)
	return l, len(queue) == 0, nil
}

// unlock releases all locks of tx.
func (k *keyLocks) unlock(tx *Tx) {
	k.release(tx.locks...)
	tx.locks = nil
}

// release removes writes from their queues, and passes the locks that they hold to the next writes.
func (k *keyLocks) release(locks ...keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range locks {
		queue := k.queues[l.key]
		i := slices.IndexFunc(queue, func(other keyLock) bool { return other.ready == l.ready })
		queue = slices.Delete(queue, i, i+1)
		k.queues[l.key] = queue
		if len(queue) == 0 {
			delete(k.queues, l.key)
		} else if i == 0 {
			close(queue[0].ready)
		}
	}
}
