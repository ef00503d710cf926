package testbed

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// received reports whether a channel has a value, once all other goroutines of the bubble wait.
func received(c <-chan time.Time) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestClockRunsAndIsPutForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, began := NewClock(), time.Now()
		assert.Equal(t, began, c.Now())
		time.Sleep(time.Minute)
		assert.Equal(t, began.Add(time.Minute), c.Now())
		c.Advance(24 * time.Hour)
		assert.Equal(t, began.Add(24*time.Hour+time.Minute), c.Now())
		assert.Equal(t, 24*time.Hour+time.Minute, c.Since(began))
		time.Sleep(time.Minute)
		assert.Equal(t, began.Add(24*time.Hour+2*time.Minute), c.Now())
		assert.Panics(t, func() { c.Advance(-1) })
		assert.Equal(t, 24*time.Hour, c.Offset())
	})
}

func TestTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		byItself, put := c.NewTimer(time.Hour), c.NewTimer(10*time.Hour)
		time.Sleep(time.Hour - 1)
		assert.False(t, received(byItself.C()))
		time.Sleep(time.Nanosecond)
		assert.True(t, received(byItself.C()), "time runs by itself")
		assert.False(t, byItself.Stop(), "it has fired")

		c.Advance(9*time.Hour - 1)
		assert.False(t, received(put.C()), "a nanosecond is left")
		c.Advance(1)
		assert.True(t, received(put.C()), "Advance wakes")
		time.Sleep(48 * time.Hour)
		assert.False(t, received(put.C()), "once")

		assert.True(t, received(c.After(-time.Second)), "a time in the past is due at once")
		slept := make(chan time.Time)
		go func() {
			c.Sleep(24 * time.Hour)
			close(slept)
		}()
		synctest.Wait()
		c.Advance(24 * time.Hour)
		assert.True(t, received(slept))
		assert.Empty(t, c.waiting, "fired timers are dropped")
	})
}

func TestStopAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		timer := c.NewTimer(time.Hour)
		assert.True(t, timer.Stop())
		assert.False(t, timer.Stop())
		c.Advance(2 * time.Hour)
		assert.False(t, received(timer.C()), "stopped")

		assert.False(t, timer.Reset(time.Hour))
		assert.True(t, timer.Reset(3*time.Hour))
		c.Advance(2 * time.Hour)
		assert.False(t, received(timer.C()), "reset to later")
		c.Advance(time.Hour)
		synctest.Wait()
		timer.Reset(time.Hour)
		assert.False(t, received(timer.C()), "nothing stale after Reset")
		time.Sleep(time.Hour)
		assert.True(t, received(timer.C()))
	})
}

func TestAfterFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		var calls atomic.Int32
		timer := c.AfterFunc(24*time.Hour, func() {
			calls.Add(1)
			c.AfterFunc(time.Hour, func() { calls.Add(1) }) // may use the clock
		})
		c.Advance(24 * time.Hour)
		synctest.Wait()
		assert.EqualValues(t, 1, calls.Load())
		c.Advance(time.Hour)
		synctest.Wait()
		assert.EqualValues(t, 2, calls.Load())
		timer.Reset(time.Hour)
		assert.True(t, timer.Stop())
		time.Sleep(2 * time.Hour)
		assert.EqualValues(t, 2, calls.Load())
	})
}

func TestTicker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		ticker := c.NewTicker(time.Minute)
		time.Sleep(time.Minute)
		assert.True(t, received(ticker.C()))
		assert.False(t, received(ticker.C()))

		c.Advance(24*time.Hour + time.Second)
		assert.True(t, received(ticker.C()))
		assert.False(t, received(ticker.C()), "a day of unreceived ticks is one tick")
		time.Sleep(59*time.Second - 1)
		assert.False(t, received(ticker.C()))
		time.Sleep(time.Nanosecond)
		assert.True(t, received(ticker.C()), "the ticks stay where they were")

		ticker.Stop()
		c.Advance(time.Hour)
		assert.False(t, received(ticker.C()))
		assert.Empty(t, c.waiting)
		assert.Panics(t, func() { c.NewTicker(0) })
	})
}

// Many goroutines use one clock while it is put forward: each timer fires, and not before its time.
func TestClockConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				due := c.Now().Add(time.Duration(n) * time.Minute)
				timer := c.NewTimer(time.Duration(n) * time.Minute)
				now := <-timer.C()
				assert.False(t, now.Before(due), "timer %d fired early", n)
			})
		}
		for range 10 {
			all.Go(func() { c.Advance(10 * time.Minute) })
		}
		all.Wait()
		assert.Empty(t, c.waiting)
	})
}
