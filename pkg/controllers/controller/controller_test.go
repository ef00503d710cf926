package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
)

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// run starts c and returns a function that stops it and waits for its end.
func run(t *testing.T, c *Controller) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, 2)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func TestReconcilesAgainWhenDue(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []time.Duration
	}{
		{"in one step", []time.Duration{24 * time.Hour}},
		{"by way of the longest timer", []time.Duration{time.Minute, 24*time.Hour - time.Minute}},
		{"in steps shorter than the timer", []time.Duration{time.Second, time.Second, 24*time.Hour - 2*time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(noon)
			due := noon.Add(24 * time.Hour)
			calls := make(chan time.Time, 10)
			c := New("test", clock, func(context.Context, string) (time.Time, error) {
				now := clock.Now()
				calls <- now
				if now.Before(due) {
					return due, nil
				}
				return time.Time{}, nil
			})
			run(t, c)
			c.Enqueue("a")
			require.Equal(t, noon, <-calls)
			for _, step := range tt.steps {
				require.Eventually(t, clock.HasWaiters, 2*time.Minute, time.Millisecond, "no timer is set")
				require.Empty(t, calls, "reconciled before it was due")
				clock.Step(step)
			}
			assert.Equal(t, due, <-calls)
		})
	}
}

func TestOneTimerPerKey(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	c := New("test", clock, nil)
	c.setTimer("a", noon.Add(time.Hour))
	c.setTimer("a", noon.Add(time.Second))
	c.setTimer("b", noon.Add(time.Second))
	assert.Equal(t, 2, clock.Waiters())
	c.setTimer("b", time.Time{})
	assert.Equal(t, 1, clock.Waiters(), "the zero time removes the timer")
	c.setTimer("a", noon)
	assert.Zero(t, clock.Waiters())
	assert.Equal(t, 1, c.queue.Len(), "a key that is already due is queued at once")

	c.setTimer("c", noon.Add(time.Hour))
	replaced := c.timers["c"]
	c.setTimer("c", noon.Add(2*time.Hour))
	clock.SetTime(noon.Add(time.Hour))
	c.fire("c", replaced)
	assert.Equal(t, 1, c.queue.Len(), "a timer that was replaced while it fired does nothing")

	c.stopTimers()
	c.setTimer("a", noon.Add(24*time.Hour))
	assert.Zero(t, clock.Waiters(), "no timer is set once the controller stops")
}

func TestTriesAgainAfterAnErrorWhileTheClockStands(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	calls := 0
	done := make(chan int, 1)
	c := New("test", clock, func(context.Context, string) (time.Time, error) {
		switch calls++; calls {
		case 1:
			return time.Time{}, errors.New("not yet")
		case 2:
			panic("a bad object")
		}
		done <- calls
		return time.Time{}, nil
	})
	run(t, c)
	c.Enqueue("a")
	assert.Equal(t, 3, <-done)
}

func TestEmptyKeysAreIgnored(t *testing.T) {
	c := New("test", clocktesting.NewFakeClock(noon), nil)
	c.Enqueue("")
	assert.Zero(t, c.queue.Len())
}

func TestHandlers(t *testing.T) {
	type change struct{ before, after *int }
	var got []change
	h := Handlers(func(before, after *int) { got = append(got, change{before, after}) })
	one, two := 1, 2
	h.OnAdd(&one, false)
	h.OnUpdate(&one, &two)
	h.OnDelete(&two)
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "x", Obj: &two})
	h.OnAdd("something else", false)
	assert.Equal(t, []change{{nil, &one}, {&one, &two}, {&two, nil}, {&two, nil}}, got)
	assert.Same(t, &one, Newest(&one, nil))
	assert.Same(t, &two, Newest(&one, &two))
}
