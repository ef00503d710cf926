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
		if _, _, err := q.join("a", ""); err != nil {
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
	if _, _, err := q.join("a", "another"); err != nil {
		t.Errorf("the line is too long for another user: %v", err)
	}
}

// A user who fills a line has as many turns as each of the others, however many writes wait.
func TestTurnsAreFair(t *testing.T) {
	q := newTurns()
	who := map[chan struct{}]string{}
	join := func(user string, n int) {
		for i := range n {
			place, _, err := q.join("a", user)
			if err != nil {
				t.Fatal(err)
			}
			who[place.ready] = fmt.Sprint(user, i)
		}
	}
	serve := func(n int) (order []string) {
		for range n {
			first := q.lines["a"][0]
			order = append(order, who[first.ready])
			q.release(first)
			if line := q.lines["a"]; len(line) > 0 {
				select {
				case <-line[0].ready:
				default:
					t.Errorf("%s does not know that it is its turn", who[line[0].ready])
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
	if len(q.lines) != 0 {
		t.Errorf("left %v", q.lines)
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
