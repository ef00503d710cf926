package ledger

import (
	"container/heap"
	"context"
	"errors"
	"iter"

	"macrack.io/macrack/pkg/apis/rack"
)

// A RecordSource calls yield with each record, those of a chain sorted by name, and returns the
// first error of yield. yield may keep the record, but not change it.
type RecordSource func(ctx context.Context, yield func(*rack.AuditRecord) error) error

// Records returns a source of the given records, which must be sorted.
func Records(records ...*rack.AuditRecord) RecordSource {
	return func(_ context.Context, yield func(*rack.AuditRecord) error) error {
		for _, record := range records {
			if err := yield(record); err != nil {
				return err
			}
		}
		return nil
	}
}

// Ahead starts reading a source, and returns a source of the results. It must be read to its end,
// unless ctx ends.
func Ahead(ctx context.Context, source RecordSource) RecordSource {
	type part struct {
		records []*rack.AuditRecord
		err     error
	}
	parts := make(chan part, 1)
	go func() {
		defer close(parts)
		send := func(p part) error {
			select {
			case parts <- p:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := inBatches(ctx, source, func(records []*rack.AuditRecord) error { return send(part{records: records}) }); err != nil {
			_ = send(part{err: err})
		}
	}()
	return func(_ context.Context, yield func(*rack.AuditRecord) error) error {
		for p := range parts {
			for _, record := range p.records {
				if err := yield(record); err != nil {
					return err
				}
			}
			if p.err != nil {
				return p.err
			}
		}
		return ctx.Err()
	}
}

// Merge returns a source of the records of all sources, sorted by name. Each source must be sorted
// by name, as the records of a namespace in a list are.
func Merge(sources ...RecordSource) RecordSource {
	if len(sources) == 1 {
		return sources[0]
	}
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		var heads mergeHeap
		defer func() {
			for _, m := range heads {
				m.stop()
			}
		}()
		for _, source := range sources {
			next, stop := iter.Pull2(source.pull(ctx))
			m := &merging{next: next, stop: stop}
			if ok, err := m.advance(); err != nil {
				stop()
				return err
			} else if ok {
				heads = append(heads, m)
			}
		}
		heap.Init(&heads)
		for len(heads) > 0 {
			m := heads[0]
			if err := yield(m.record); err != nil {
				return err
			}
			ok, err := m.advance()
			if err != nil {
				return err
			}
			if ok {
				heap.Fix(&heads, 0)
			} else {
				heap.Pop(&heads)
			}
		}
		return nil
	}
}

// pull returns the records as a sequence, which ends with the error of the source if there is one.
func (s RecordSource) pull(ctx context.Context) iter.Seq2[*rack.AuditRecord, error] {
	return func(yield func(*rack.AuditRecord, error) bool) {
		err := s(ctx, func(record *rack.AuditRecord) error {
			if !yield(record, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

var errStopped = errors.New("stopped")

// merging is a source of Merge with its next record.
type merging struct {
	next   func() (*rack.AuditRecord, error, bool)
	stop   func()
	record *rack.AuditRecord
}

// advance reads the next record, and stops the source at its end.
func (m *merging) advance() (bool, error) {
	record, err, ok := m.next()
	if !ok || err != nil {
		m.stop()
		return false, err
	}
	m.record = record
	return true, nil
}

type mergeHeap []*merging

func (h mergeHeap) Len() int { return len(h) }
func (h mergeHeap) Less(i, j int) bool {
	a, b := h[i].record, h[j].record
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	return a.Namespace < b.Namespace
}
func (h mergeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *mergeHeap) Push(x any)   { *h = append(*h, x.(*merging)) }
func (h *mergeHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
