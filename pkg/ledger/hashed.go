package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"runtime"

	"golang.org/x/sync/errgroup"

	"macrack.io/macrack/pkg/apis/rack"
)

// A batch is records that follow each other, and whether each has the hash of its content.
type batch struct {
	records []*rack.AuditRecord
	intact  []bool
	done    chan struct{} // closed once they are hashed
}

// batchSize keeps what passes from one goroutine to the next large beside the passing.
const batchSize = 256

// hashed calls yield with each record of a source, in its order, and with whether the record's hash is that of its content.
// To read and to hash is most of the work of a report, so both are ahead of yield, on all processors.
func hashed(ctx context.Context, source RecordSource, yield func(record *rack.AuditRecord, intact bool) error) error {
	hashers := runtime.GOMAXPROCS(0)
	group, ctx := errgroup.WithContext(ctx)
	unhashed, inOrder := make(chan *batch), make(chan *batch, hashers)
	group.Go(func() error {
		defer close(unhashed)
		defer close(inOrder)
		return readBatches(ctx, source, func(b *batch) error {
			for _, to := range []chan<- *batch{inOrder, unhashed} {
				select {
				case to <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	})
	for range hashers {
		group.Go(func() error {
			var buffer []byte
			for b := range unhashed {
				buffer = b.hash(buffer)
			}
			return nil
		})
	}
	group.Go(func() error {
		for b := range inOrder {
			select {
			case <-b.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			for i, record := range b.records {
				if err := yield(record, b.intact[i]); err != nil {
					return err
				}
			}
		}
		return ctx.Err()
	})
	return group.Wait()
}

func readBatches(ctx context.Context, source RecordSource, send func(*batch) error) error {
	b := &batch{done: make(chan struct{})}
	err := source(ctx, func(record *rack.AuditRecord) error {
		if b.records = append(b.records, record); len(b.records) < batchSize {
			return nil
		}
		full := b
		b = &batch{records: make([]*rack.AuditRecord, 0, batchSize), done: make(chan struct{})}
		return send(full)
	})
	if err != nil || len(b.records) == 0 {
		return err
	}
	return send(b)
}

// hash hashes the records, each of which it encodes in buffer, and returns that for the next batch.
func (b *batch) hash(buffer []byte) []byte {
	b.intact = make([]bool, len(b.records))
	for i, record := range b.records {
		buffer = AppendCanonical(buffer[:0], record)
		sum := sha256.Sum256(buffer)
		var hash [2 * sha256.Size]byte
		hex.Encode(hash[:], sum[:])
		b.intact[i] = string(hash[:]) == record.Hash
	}
	close(b.done)
	return buffer
}
