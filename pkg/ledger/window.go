package ledger

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"macrack.io/macrack/pkg/rules"
)

// UsualWindows are the names of the windows in a list of reports.
var UsualWindows = []string{"24h", "7d", "30d", "90d"}

// A Window is the time window of a report.
type Window struct {
	Name     string
	From, To time.Time // To is exclusive, unless it is the current time
	ongoing  bool      // To is the current time: all records until now are in the window
	all      bool      // records and breaks of any time are in the window
}

// Everything returns the window of all records.
func Everything(now time.Time) Window {
	return Window{Name: "everything", From: time.UnixMicro(0).UTC(), To: now.UTC(), ongoing: true, all: true}
}

var backFromNow = regexp.MustCompile(`^([1-9][0-9]{0,5})([hd])$`)

// ParseWindow returns the window with a name: hours or days back from now, such as 24h or 90d;
// today, month (the current one) or a month such as 2026-11; or two dates such as
// 2026-08-01..2026-11-01, from the beginning of the first to the beginning of the second. Days and
// months are those of UTC.
func ParseWindow(name string, now time.Time) (Window, error) {
	now = now.UTC()
	if from, to, ok := strings.Cut(name, ".."); ok {
		return betweenDates(name, from, to, now)
	}
	switch name {
	case "today":
		today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
		return between(name, today, today.AddDate(0, 0, 1), now)
	case "month":
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		return between(name, month, month.AddDate(0, 1, 0), now)
	}
	if month, err := time.Parse("2006-01", name); err == nil {
		return between(name, month, month.AddDate(0, 1, 0), now)
	}
	match := backFromNow.FindStringSubmatch(name)
	if match == nil {
		return Window{}, fmt.Errorf("a report is named after its window: a number of hours or days such as 24h, 7d, 30d or 90d, "+
			"today, month, a month such as 2026-11, or two dates such as 2026-08-01..2026-11-01; %q is not such a name", name)
	}
	count, err := strconv.Atoi(match[1])
	if err != nil {
		return Window{}, err
	}
	unit := time.Hour
	if match[2] == "d" {
		unit = 24 * time.Hour
	}
	if longest := rules.MaxAuditRetention / unit; time.Duration(count) > longest {
		return Window{}, fmt.Errorf("window %q is too long: records are kept for at most %d%s", name, int64(longest), match[2])
	}
	return Window{Name: name, From: now.Add(-time.Duration(count) * unit), To: now, ongoing: true}, nil
}

func betweenDates(name, first, second string, now time.Time) (Window, error) {
	from, err := parseDate(name, first)
	if err != nil {
		return Window{}, err
	}
	to, err := parseDate(name, second)
	if err != nil {
		return Window{}, err
	}
	if !from.Before(to) {
		return Window{}, fmt.Errorf("window %q ends before it begins: the second date, which is not in the window, must be after the first", name)
	}
	return between(name, from, to, now)
}

// between returns the window between two times, up to now.
func between(name string, from, to, now time.Time) (Window, error) {
	switch {
	case from.After(now):
		return Window{}, fmt.Errorf("window %q begins in the future: it is %s now", name, now.Format(time.RFC3339))
	case to.After(now):
		return Window{Name: name, From: from, To: now, ongoing: true}, nil
	}
	return Window{Name: name, From: from, To: to}, nil
}

func parseDate(name, date string) (time.Time, error) {
	t, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return time.Time{}, fmt.Errorf("window %q: %q is not a date such as 2026-08-01", name, date)
	}
	return t, nil
}

// span is a stretch of time in microseconds since 1970, both ends included.
type span struct{ from, to int64 }

const always, forever = math.MinInt64, math.MaxInt64

// allTime meets every window.
var allTime = span{always, forever}

func (w Window) span() span {
	if w.all {
		return allTime
	}
	if w.ongoing {
		return span{w.From.UnixMicro(), forever}
	}
	return span{w.From.UnixMicro(), w.To.UnixMicro() - 1}
}

func (s span) meets(other span) bool { return s.from <= other.to && other.from <= s.to }
