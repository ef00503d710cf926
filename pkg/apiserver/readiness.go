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
	// checkAge is the time for which the result of a check is returned to all callers.
	checkAge = time.Second

	// checkTimeout is the maximum duration of a check.
	checkTimeout = 5 * time.Second
)

// writable returns a check that etcd accepts writes: a full etcd still answers reads. Any client
// may call it at any rate, so callers share the result of one write per second.
func writable(backend *txn.Backend, now clock.PassiveClock) healthz.HealthChecker {
	s := &sharedCheck{
		clock: clock.RealClock{}, // not the clock of the rules, which do not depend on the age of a result
		check: func(ctx context.Context) error {
			return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
				if _, _, err := tx.GetKey(ctx, "health", "write"); err != nil {
					return err
				}
				return tx.PutKey("health", "write", []byte(now.Now().UTC().Format(time.RFC3339)))
			})
		},
	}
	return healthz.NamedCheck("etcd-writable", func(r *http.Request) error { return s.do(r.Context()) })
}

// A sharedCheck runs a check once for all callers at the same time or within checkAge.
type sharedCheck struct {
	clock clock.PassiveClock
	check func(context.Context) error

	mu   sync.Mutex
	last *checkResult
}

// A checkResult is the result of a check. It is valid after done is closed.
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

// do returns the result of the running check, of one that began less than checkAge ago, or of a new
// one. It stops waiting when ctx ends; the check continues for other callers.
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
