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

// TestManyWhoAskCostOneCheck checks that readiness probes cost etcd one write per second,
// regardless of their rate.
func TestManyWhoAskCostOneCheck(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	var checks atomic.Int64
	goOn := make(chan struct{})
	s := &sharedCheck{clock: clock, check: func(context.Context) error {
		checks.Add(1)
		<-goOn
		return nil
	}}
	hungUp, hangUp := context.WithCancel(t.Context())
	hangUp()
	assert.ErrorIs(t, s.do(hungUp), context.Canceled)

	var asking sync.WaitGroup
	for range 700 {
		asking.Go(func() { assert.NoError(t, s.do(t.Context()), "who hangs up does not stop the check of the others") })
	}
	clock.SetTime(clock.Now().Add(time.Minute)) // it takes long: no second one is made meanwhile
	for range 700 {
		asking.Go(func() { assert.NoError(t, s.do(t.Context())) })
	}
	close(goOn)
	asking.Wait()
	assert.LessOrEqual(t, checks.Load(), int64(2), "one, and one a minute later for those who ask after the first")
}

func TestACheckIsOfTheLastSecond(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	var found error
	checks := 0
	s := &sharedCheck{clock: clock, check: func(ctx context.Context) error {
		checks++
		_, limited := ctx.Deadline()
		assert.True(t, limited, "it does not wait for ever")
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
