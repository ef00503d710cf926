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
	// guestLogPause is the minimum interval between log entries with the same message.
	guestLogPause = 10 * time.Minute
	// maxGuestText bounds the guest's text in an entry, in bytes.
	maxGuestText = 200
)

// guestLog logs guest errors. They may quote the guest, and the log is a file on the host: a guest
// must not fill the disk with it or forge its lines.
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

// trouble logs message, a constant, unless it was logged within guestLogPause.
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

// guestText returns text that may come from a guest as one printable line.
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
