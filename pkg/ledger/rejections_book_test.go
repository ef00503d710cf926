package ledger

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/apis/rack"
)

// A book is where rejections are written.
type book struct {
	mu      sync.Mutex
	records []*rack.AuditRecord
	fail    error
	wrote   chan struct{} // if set, receives one token a write, whether it succeeds or not
	hold    chan struct{} // if set, a write waits for it
}

func (b *book) write(ctx context.Context, record *rack.AuditRecord) error {
	if b.hold != nil {
		<-b.hold
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wrote != nil {
		b.wrote <- struct{}{}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if b.fail == nil {
		identify(ctx, record) // as Append does
		b.records = append(b.records, record)
	}
	return b.fail
}

func (b *book) setFail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// counts returns the counts of the records: 0 is one rejection.
func (b *book) counts() []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var counts []int64
	for _, record := range b.records {
		counts = append(counts, record.Details.Count)
	}
	return counts
}

// total returns how many rejections the records stand for.
func (b *book) total() (total int64) {
	for _, count := range b.counts() {
		total += max(1, count)
	}
	return total
}

func refusal(tenant, lease, vm string) *rack.AuditRecord {
	l := newLease(tenant, lease)
	l.Status.SerialNumber = "C07MAC1"
	return NewInstanceRejected(newInstance(l, vm), l, rack.LayerRegistry, "NoFreeSlot", "two run")
}

func as(name string) context.Context {
	return genericapirequest.WithUser(context.Background(), &user.DefaultInfo{Name: name})
}

// run starts Run, and returns what stops it and waits for it.
func run(r *Rejections) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}
