package usagereport

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/ledger/usage"
)

// A Source has the histories of all leases, and a report on all records.
type Source interface {
	Leases(ctx context.Context) ([]ledger.Lease, rack.ComplianceReportStatus, error)
}

// Tenants can read reports as often as they like, and each report may need all records. So reports
// share a book for at least minimumAge, and for long enough that reading takes at most a twentieth
// of the time. Each report has the time of its book.
const (
	minimumAge  = 2 * time.Second
	restFactor  = 20
	longestRead = time.Minute // longer differences are steps of the clock
	readTimeout = 5 * time.Minute
)

// books has the current book.
type books struct {
	clock  clock.PassiveClock
	source Source
	turn   chan struct{} // holds a token while the book is not read

	book  *usage.Book // may be nil
	read  time.Time
	until time.Time
}

func newBooks(clock clock.PassiveClock, source Source) *books {
	b := &books{clock: clock, source: source, turn: make(chan struct{}, 1)}
	b.turn <- struct{}{}
	return b
}

// get returns the current book, and reads a new one if it is too old.
func (b *books) get(ctx context.Context) (*usage.Book, error) {
	select {
	case <-b.turn:
		defer func() { b.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := b.clock.Now()
	if b.book != nil && !began.Before(b.read) && began.Before(b.until) {
		return b.book, nil
	}
	// A user who disconnects does not end the reading, and so cannot make others begin it again.
	reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	leases, report, err := b.source.Leases(reading)
	if err != nil {
		return nil, err
	}
	ended := b.clock.Now()
	b.book, b.read = usage.NewBook(leases, began, report.CoveredSince), began
	b.until = ended.Add(max(minimumAge, restFactor*min(ended.Sub(began), longestRead)))
	return b.book, nil
}
