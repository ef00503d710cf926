package txn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func writer(keys ...string) *Tx {
	tx := &Tx{main: &resource{gr: schema.GroupResource{Resource: "things"}}, deadline: time.Now().Add(time.Minute)}
	for _, key := range keys {
		put := clientv3.OpPut(key, "")
		tx.ops = append(tx.ops, op{key: key, write: &put})
	}
	return tx
}

// waiting returns the length of the queue of a key, including the holder of the lock.
func (k *keyLocks) waiting(key string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queues[key])
}

func TestKeyLocksAreInOrder(t *testing.T) {
	k := newKeyLocks()
	first := writer("a", "b")
	if !k.tryLock(first) {
		t.Fatal("not locked")
	}
	if !k.tryLock(first) || len(first.locks) != 2 {
		t.Errorf("locked again: %v", first.locks)
	}
	if k.tryLock(writer("c", "b")) || k.waiting("c") != 0 {
		t.Error("locked a locked key")
	}
	var order []int
	var wg sync.WaitGroup
	for i := range 10 {
		tx := writer("b")
		wg.Go(func() {
			if err := k.lock(t.Context(), tx); err != nil {
				t.Error(err)
			}
			order = append(order, i)
			k.unlock(tx)
		})
		for k.waiting("b") != i+2 {
			time.Sleep(time.Millisecond)
		}
	}
	k.unlock(first)
	wg.Wait()
	if fmt.Sprint(order) != "[0 1 2 3 4 5 6 7 8 9]" || len(k.queues) != 0 {
		t.Errorf("order %v, left %v", order, k.queues)
	}
}

func TestKeyLockCanceled(t *testing.T) {
	k := newKeyLocks()
	first, second, third := writer("a"), writer("a"), writer("a")
	if !k.tryLock(first) {
		t.Fatal("not locked")
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone, done := make(chan error), make(chan error)
	go func() {
		err := k.lock(ctx, second)
		k.unlock(second)
		gone <- err
	}()
	for k.waiting("a") != 2 {
		time.Sleep(time.Millisecond)
	}
	go func() { done <- k.lock(t.Context(), third) }()
	for k.waiting("a") != 3 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	k.unlock(first)
	if err := <-done; err != nil {
		t.Error(err)
	}
	k.unlock(third)
	if len(k.queues) != 0 {
		t.Errorf("left %v", k.queues)
	}
}

func TestQueueIsBounded(t *testing.T) {
	k := newKeyLocks()
	for range maxQueue {
		if _, _, err := k.enqueue("a", ""); err != nil {
			t.Fatal(err)
		}
	}
	tx := writer("a")
	if err := k.lock(t.Context(), tx); !apierrors.IsTooManyRequests(err) {
		t.Error(err)
	}
	k.unlock(tx)
	if got := k.waiting("a"); got != maxQueue {
		t.Errorf("%d in the queue", got)
	}
	if _, _, err := k.enqueue("a", "another"); err != nil {
		t.Errorf("the queue is full for another user: %v", err)
	}
}

// A user who fills a queue gets the lock as often as each other user, regardless of the number of
// waiting writes.
func TestKeyLocksAreFair(t *testing.T) {
	k := newKeyLocks()
	who := map[chan struct{}]string{}
	join := func(user string, n int) {
		for i := range n {
			lock, _, err := k.enqueue("a", user)
			if err != nil {
				t.Fatal(err)
			}
			who[lock.ready] = fmt.Sprint(user, i)
		}
	}
	serve := func(n int) (order []string) {
		for range n {
			first := k.queues["a"][0]
			order = append(order, who[first.ready])
			k.release(first)
			if queue := k.queues["a"]; len(queue) > 0 {
				select {
				case <-queue[0].ready:
				default:
					t.Errorf("%s was not told that it holds the lock", who[queue[0].ready])
				}
			}
		}
		return order
	}
	join("tenant", 6)
	join("agent", 1)
	join("controllers", 2)
	if got, want := serve(5), []string{"tenant0", "agent0", "controllers0", "tenant1", "controllers1"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	join("agent", 1) // again, while the tenant waits
	if got, want := serve(5), []string{"tenant2", "agent0", "tenant3", "tenant4", "tenant5"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if len(k.queues) != 0 {
		t.Errorf("left %v", k.queues)
	}
}

// Each write gets the locks of all its keys, and two writes never hold the same lock.
func TestKeyLocksExclude(t *testing.T) {
	k := newKeyLocks()
	keys := []string{"a", "b", "c", "d", "e"}
	held := map[string]int{}
	var mu sync.Mutex
	count := func(tx *Tx, n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, t := range tx.locks {
			held[t.key] += n
		}
		for key, n := range held {
			if n > 1 {
				t.Errorf("%s is held by %d", key, n)
			}
		}
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 200 {
				tx := writer()
				for range 3 { // want other keys each time
					want := append([]string{}, keys...)
					rand.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
					next := writer(want[:rand.IntN(4)]...)
					tx.ops = next.ops
					before := len(tx.locks)
					if k.tryLock(tx) {
						claimed := *tx
						claimed.locks = tx.locks[before:]
						count(&claimed, 1)
					} else {
						count(tx, -1)
						if err := k.lock(t.Context(), tx); err != nil {
							t.Error(err)
						}
						count(tx, 1)
					}
				}
				count(tx, -1)
				k.unlock(tx)
			}
		})
	}
	wg.Wait()
	if len(k.queues) != 0 {
		t.Errorf("left %v", k.queues)
	}
}
