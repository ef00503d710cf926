package runner

import (
	"strings"
	"sync"
	"time"
	"unicode"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// guestLogPause is how often at most the runner logs the same trouble with its
	// guest, whatever the guest says about it.
	guestLogPause = 10 * time.Minute
	// maxGuestText is how much of a guest's own words an entry has, in bytes.
	maxGuestText = 200
)

// guestLog logs trouble with a guest. Errors have the guest's own words, and the log
// is a file of the host's: no guest may fill the disk with it, or forge its lines.
type guestLog struct {
	clock clock.PassiveClock
	uid   string

	mu      sync.Mutex
	entries map[string]*guestEntry // by message
}

type guestEntry struct {
	last    time.Time
	dropped int
}

func newGuestLog(clk clock.PassiveClock, uid string) *guestLog {
	return &guestLog{clock: clk, uid: uid, entries: map[string]*guestEntry{}}
}

// trouble logs message, a constant, unless it was logged a moment ago.
func (l *guestLog) trouble(message string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	entry := l.entries[message]
	if entry == nil {
		entry = &guestEntry{}
		l.entries[message] = entry
	} else if now.Sub(entry.last) < guestLogPause {
		entry.dropped++
		return
	}
	klog.InfoS(message, "uid", l.uid, "err", guestText(err.Error()), "notLogged", entry.dropped)
	entry.last, entry.dropped = now, 0
}

// guestText is a line of what may be a guest's words.
func guestText(text string) string {
	end := ""
	if len(text) > maxGuestText {
		text, end = text[:maxGuestText], "..."
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text) + end
}
