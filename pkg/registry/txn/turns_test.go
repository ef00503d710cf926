package txn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func newTurns() *turns { return &turns{lines: map[string][]chan struct{}{}} }

// waiting returns how many are in line for a key, the first included.
func (q *turns) waiting(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines[key])
}

func TestTurnsAreInOrder(t *testing.T) {
	q := newTurns()
	first := writer("a", "b")
	if !q.claim(first) {
		t.Fatal("not claimed")
	}
	if !q.claim(first) || len(first.turn) != 2 {
		t.Errorf("claimed again: %v", first.turn)
	}
	if q.claim(writer("c", "b")) || q.waiting("c") != 0 {
		t.Error("claimed what is taken")
	}
	var order []int
	var wg sync.WaitGroup
	for i := range 10 {
		tx := writer("b")
		wg.Go(func() {
			if err := q.wait(t.Context(), tx); err != nil {
				t.Error(err)
			}
			order = append(order, i)
			q.leave(tx)
		})
		for q.waiting("b") != i+2 {
			time.Sleep(time.Millisecond)
		}
	}
	q.leave(first)
	wg.Wait()
	if fmt.Sprint(order) != "[0 1 2 3 4 5 6 7 8 9]" || len(q.lines) != 0 {
		t.Errorf("order %v, left %v", order, q.lines)
	}
}

func TestTurnGivenUp(t *testing.T) {
	q := newTurns()
	first, second, third := writer("a"), writer("a"), writer("a")
	if !q.claim(first) {
		t.Fatal("not claimed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone, done := make(chan error), make(chan error)
	go func() {
		err := q.wait(ctx, second)
		q.leave(second)
		gone <- err
	}()
	for q.waiting("a") != 2 {
		time.Sleep(time.Millisecond)
	}
	go func() { done <- q.wait(t.Context(), third) }()
	for q.waiting("a") != 3 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	q.leave(first)
	if err := <-done; err != nil {
		t.Error(err)
	}
	q.leave(third)
	if len(q.lines) != 0 {
		t.Errorf("left %v", q.lines)
	}
}

func TestLineIsBounded(t *testing.T) {
	q := newTurns()
	for range maxLine {
		if _, err := q.join(turn{"a", make(chan struct{})}); err != nil {
			t.Fatal(err)
		}
	}
	tx := writer("a")
	if err := q.wait(t.Context(), tx); !apierrors.IsTooManyRequests(err) {
		t.Error(err)
	}
	q.leave(tx)
	if got := q.waiting("a"); got != maxLine {
		t.Errorf("%d in line", got)
	}
}

// Whatever keys writes want, each gets them, and never two the same at once.
func TestTurnsExclude(t *testing.T) {
	q := newTurns()
	keys := []string{"a", "b", "c", "d", "e"}
	held := map[string]int{}
	var mu sync.Mutex
	count := func(tx *Tx, n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, t := range tx.turn {
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
					before := len(tx.turn)
					if q.claim(tx) {
						claimed := *tx
						claimed.turn = tx.turn[before:]
						count(&claimed, 1)
					} else {
						count(tx, -1)
						if err := q.wait(t.Context(), tx); err != nil {
							t.Error(err)
						}
						count(tx, 1)
					}
				}
				count(tx, -1)
				q.leave(tx)
			}
		})
	}
	wg.Wait()
	if len(q.lines) != 0 {
		t.Errorf("left %v", q.lines)
	}
}
