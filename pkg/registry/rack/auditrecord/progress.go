package auditrecord

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
)

// announceAfter is the time after which a report announces its progress.
const announceAfter = time.Second

type announceKey struct{}

// WithAnnounce returns a context in which a report that takes longer than a second calls announce
// once, with a text for the user who waits.
func WithAnnounce(ctx context.Context, announce func(text string)) context.Context {
	return context.WithValue(ctx, announceKey{}, announce)
}

// announced returns a source that counts its records, and a function that ends the announcement of
// their progress. No announcement runs after it has returned.
func announced(ctx context.Context, source ledger.RecordSource, total int64, after time.Duration) (ledger.RecordSource, func()) {
	announce, ok := ctx.Value(announceKey{}).(func(string))
	if !ok {
		return source, func() {}
	}
	var read atomic.Int64
	finished := make(chan struct{})
	timer := time.AfterFunc(after, func() {
		defer close(finished)
		announce(progress(read.Load(), total, after))
	})
	counted := func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		return source(ctx, func(record *rack.AuditRecord) error {
			read.Add(1)
			return yield(record)
		})
	}
	return counted, func() {
		if !timer.Stop() {
			<-finished
		}
	}
}

// progress describes a report that has read some of its records in a time.
func progress(read, total int64, in time.Duration) string {
	if read == 0 || read >= total {
		return fmt.Sprintf("the report reads all %d records of the ledger", total)
	}
	left := time.Duration(float64(in) * float64(total-read) / float64(read))
	return fmt.Sprintf("the report reads all %d records of the ledger: %d%% after %s, about %s left",
		total, 100*read/total, in, max(left, time.Second).Round(time.Second))
}
