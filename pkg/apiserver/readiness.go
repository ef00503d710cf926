package apiserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/registry/txn"
)

const (
	// checkAge is for how long what a check found is told to all who ask.
	checkAge = time.Second

	// checkTimeout is how long a check may take.
	checkTimeout = 5 * time.Second
)

// writable returns a check that etcd takes writes: one that is full still answers reads. Anybody may ask, as often as
// they like: they are told what one write a second found.
func writable(domain *txn.Domain, now clock.PassiveClock) healthz.HealthChecker {
	s := &sharedCheck{
		clock: clock.RealClock{}, // not the clock of the rules: how old an answer is concerns none
		check: func(ctx context.Context) error {
			return domain.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
				if _, _, err := tx.GetKey(ctx, "health", "write"); err != nil {
					return err
				}
				return tx.PutKey("health", "write", []byte(now.Now().UTC().Format(time.RFC3339)))
			})
		},
	}
	return healthz.NamedCheck("etcd-writable", func(r *http.Request) error { return s.do(r.Context()) })
}

// A sharedCheck makes a check once for all who ask at the same time, or within checkAge.
type sharedCheck struct {
	clock clock.PassiveClock
	check func(context.Context) error

	mu   sync.Mutex
	last *checkResult
}

// A checkResult is that of a check, once done is closed.
type checkResult struct {
	began time.Time
	done  chan struct{}
	err   error
}

func (c *checkResult) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// do returns what the check found that runs, or that began less than checkAge ago, or what a new one finds. It stops
// waiting when ctx ends; the check goes on for the others.
func (s *sharedCheck) do(ctx context.Context) error {
	result := s.current(ctx)
	select {
	case <-result.done:
		return result.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *sharedCheck) current(ctx context.Context) *checkResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && (s.last.running() || s.clock.Since(s.last.began) < checkAge) {
		return s.last
	}
	result := &checkResult{began: s.clock.Now(), done: make(chan struct{})}
	s.last = result
	go func() {
		defer close(result.done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		result.err = s.check(ctx)
	}()
	return result
}
