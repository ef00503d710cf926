package race

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// fileClock is the real time plus an offset in a file that all processes of a race share.
type fileClock struct {
	clock.RealClock
	file *os.File
	skew time.Duration
}

func openClock(path string, skew time.Duration) (*fileClock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &fileClock{file: file, skew: skew}, nil
}

func (c *fileClock) offset() time.Duration {
	var b [8]byte
	if _, err := c.file.ReadAt(b[:], 0); err != nil {
		return 0 // the clock was not moved
	}
	return time.Duration(binary.LittleEndian.Uint64(b[:]))
}

// move moves the clock of all processes.
func (c *fileClock) move(by time.Duration) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(c.offset()+by))
	_, err := c.file.WriteAt(b[:], 0)
	return err
}

func (c *fileClock) Now() time.Time { return time.Now().Round(0).Add(c.offset() + c.skew) }

// poll is the interval at which timers check whether the clock was moved.
const poll = 20 * time.Millisecond

// NewTimer returns a timer that follows this clock.
func (c *fileClock) NewTimer(d time.Duration) clock.Timer {
	t := &timer{clock: c, c: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// NewTicker returns a ticker that follows this clock: however far the clock is moved, it ticks
// once.
func (c *fileClock) NewTicker(d time.Duration) clock.Ticker {
	t := &timer{clock: c, c: make(chan time.Time, 1), every: d}
	t.Reset(d)
	return ticker{t}
}

// After returns a channel that receives after d, by this clock.
func (c *fileClock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

type timer struct {
	clock *fileClock
	c     chan time.Time
	every time.Duration

	mu   sync.Mutex
	stop chan struct{} // nil if the timer is stopped
}

func (t *timer) C() <-chan time.Time { return t.c }

func (t *timer) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	running := t.stop != nil
	if running {
		close(t.stop)
		t.stop = nil
	}
	return running
}

func (t *timer) Reset(d time.Duration) bool {
	running := t.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop = make(chan struct{})
	go t.run(t.clock.Now().Add(d), t.stop)
	return running
}

func (t *timer) run(due time.Time, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(max(time.Millisecond, min(poll, due.Sub(t.clock.Now())))):
		}
		now := t.clock.Now()
		if now.Before(due) {
			continue
		}
		select {
		case t.c <- now:
		default:
		}
		if t.every == 0 {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.stop == stop {
				t.stop = nil
			}
			return
		}
		due = now.Add(t.every)
	}
}

type ticker struct{ *timer }

func (t ticker) Stop() { t.timer.Stop() }

func (c *fileClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
