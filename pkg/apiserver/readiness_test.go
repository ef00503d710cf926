package apiserver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestConcurrentProbesShareOneCheck checks that readiness probes cost etcd one write per second,
// regardless of their rate.
func TestConcurrentProbesShareOneCheck(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	var checks atomic.Int64
	proceed := make(chan struct{})
	s := &sharedCheck{clock: clock, check: func(context.Context) error {
		checks.Add(1)
		<-proceed
		return nil
	}}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, s.do(canceled), context.Canceled)

	var probes sync.WaitGroup
	for range 700 {
		probes.Go(func() { assert.NoError(t, s.do(t.Context()), "a canceled probe does not stop the check of the others") })
	}
	clock.SetTime(clock.Now().Add(time.Minute)) // a slow check: no second one starts
	for range 700 {
		probes.Go(func() { assert.NoError(t, s.do(t.Context())) })
	}
	close(proceed)
	probes.Wait()
	assert.LessOrEqual(t, checks.Load(), int64(2), "one, and one a minute later for the probes after the first")
}

func TestCheckIsRepeatedAfterASecond(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	var found error
	checks := 0
	s := &sharedCheck{clock: clock, check: func(ctx context.Context) error {
		checks++
		_, limited := ctx.Deadline()
		assert.True(t, limited, "the check has a deadline")
		return found
	}}
	assert.NoError(t, s.do(t.Context()))
	found = errors.New("etcd is away")
	clock.SetTime(clock.Now().Add(checkAge - 1))
	assert.NoError(t, s.do(t.Context()))
	assert.Equal(t, 1, checks)
	clock.SetTime(clock.Now().Add(1))
	assert.ErrorIs(t, s.do(t.Context()), found)
	assert.ErrorIs(t, s.do(t.Context()), found)
	assert.Equal(t, 2, checks)
	found = nil
	clock.SetTime(clock.Now().Add(checkAge))
	assert.NoError(t, s.do(t.Context()))
	assert.Equal(t, 3, checks)
}
