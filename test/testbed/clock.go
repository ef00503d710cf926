package testbed

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Clock is the real time plus an offset. It runs by itself, and Advance puts it forward, which
// fires at once all timers that have become due.
type Clock struct {
	mu      sync.Mutex
	offset  time.Duration
	waiting map[*alarm]struct{}
}

var (
	_ clock.WithTickerAndDelayedExecution = &Clock{}
	_ clock.WithTicker                    = &Clock{}
	_ clock.Timer                         = &alarm{}
	_ clock.Ticker                        = ticker{}
)

// NewClock returns a clock that shows the real time.
func NewClock() *Clock { return &Clock{waiting: map[*alarm]struct{}{}} }

// Advance puts the clock forward by d. It panics if d is negative: time does not run backwards here
// either.
func (c *Clock) Advance(d time.Duration) {
	if d < 0 {
		panic("testbed: negative duration; a clock is not put back")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
	for a := range c.waiting {
		a.arm()
	}
}

// Offset returns the total of all advances.
func (c *Clock) Offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset
}

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *Clock) now() time.Time { return time.Now().Add(c.offset) }

// Since returns the time elapsed since t.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Sleep returns after d.
func (c *Clock) Sleep(d time.Duration) { <-c.After(d) }

// After returns a channel that receives the time after d.
func (c *Clock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// Tick returns the channel of a ticker that cannot be stopped.
func (c *Clock) Tick(d time.Duration) <-chan time.Time { return c.NewTicker(d).C() }

// NewTimer returns a timer that fires once after d.
func (c *Clock) NewTimer(d time.Duration) clock.Timer {
	channel := make(chan time.Time, 1)
	return c.start(d, 0, channel, sendTo(channel))
}

// AfterFunc calls f in its own goroutine after d. The timer's channel is nil.
func (c *Clock) AfterFunc(d time.Duration, f func()) clock.Timer {
	return c.start(d, 0, nil, func(time.Time) { go f() })
}

// NewTicker returns a ticker. As with real tickers, a tick is dropped while the previous one has
// not been received: after an Advance by a day it ticks once, and then with its period.
func (c *Clock) NewTicker(period time.Duration) clock.Ticker {
	if period <= 0 {
		panic("testbed: the period of a ticker must be positive")
	}
	channel := make(chan time.Time, 1)
	return ticker{c.start(period, period, channel, sendTo(channel))}
}

func sendTo(channel chan time.Time) func(time.Time) {
	return func(now time.Time) {
		select {
		case channel <- now:
		default:
		}
	}
}

func (c *Clock) start(d, period time.Duration, channel chan time.Time, ring func(time.Time)) *alarm {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &alarm{clock: c, due: c.now().Add(d), period: period, channel: channel, ring: ring}
	c.waiting[a] = struct{}{}
	a.arm()
	return a
}

// alarm is a timer or a ticker. It is in its clock's waiting while it can still fire.
type alarm struct {
	clock   *Clock
	channel chan time.Time
	ring    func(now time.Time) // does not block
	period  time.Duration       // 0: once

	// Guarded by clock.mu.
	due  time.Time
	real *time.Timer
}

// arm waits in real time for the rest. clock.mu is held.
func (a *alarm) arm() {
	if a.real != nil {
		a.real.Stop()
	}
	a.real = time.AfterFunc(a.due.Sub(a.clock.now()), a.fire)
}

func (a *alarm) fire() {
	a.clock.mu.Lock()
	defer a.clock.mu.Unlock()
	now := a.clock.now()
	// The real timer may have fired before it was stopped.
	if _, waits := a.clock.waiting[a]; !waits || now.Before(a.due) {
		return
	}
	if a.period == 0 {
		delete(a.clock.waiting, a)
	} else {
		a.due = a.due.Add((now.Sub(a.due)/a.period + 1) * a.period)
		a.arm()
	}
	a.ring(now)
}

// C returns the channel on which the time is sent.
func (a *alarm) C() <-chan time.Time { return a.channel }

// Stop prevents the timer from firing, and reports whether it was still to fire.
func (a *alarm) Stop() bool {
	a.clock.mu.Lock()
	defer a.clock.mu.Unlock()
	return a.stop()
}

func (a *alarm) stop() bool {
	_, waits := a.clock.waiting[a]
	delete(a.clock.waiting, a)
	a.real.Stop()
	// As with the timers of package time, nothing stale is received after Stop or Reset.
	select {
	case <-a.channel:
	default:
	}
	return waits
}

// Reset makes the timer fire after d from now, and reports whether it was still to fire.
func (a *alarm) Reset(d time.Duration) bool {
	a.clock.mu.Lock()
	defer a.clock.mu.Unlock()
	waits := a.stop()
	a.due = a.clock.now().Add(d)
	a.clock.waiting[a] = struct{}{}
	a.arm()
	return waits
}

type ticker struct{ *alarm }

// Stop ends the ticks.
func (t ticker) Stop() { t.alarm.Stop() }
