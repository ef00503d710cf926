package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"runtime"

	"golang.org/x/sync/errgroup"

	"macrack.io/macrack/pkg/apis/rack"
)

// A batch has consecutive records, and whether each has the hash of its content.
type batch struct {
	records []*rack.AuditRecord
	intact  []bool
	done    chan struct{} // closed once they are hashed
}

// batchSize is large enough to make the cost of passing batches between goroutines negligible.
const batchSize = 256

// hashed calls yield with each record of a source, in order, and with whether the hash of the
// record is correct. Reading and hashing are most of the work of a report, so both run ahead of
// yield on all processors.
func hashed(ctx context.Context, source RecordSource, yield func(record *rack.AuditRecord, intact bool) error) error {
	hashers := runtime.GOMAXPROCS(0)
	group, ctx := errgroup.WithContext(ctx)
	unhashed, inOrder := make(chan *batch), make(chan *batch, hashers)
	group.Go(func() error {
		defer close(unhashed)
		defer close(inOrder)
		return inBatches(ctx, source, func(records []*rack.AuditRecord) error {
			b := &batch{records: records, done: make(chan struct{})}
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

// inBatches calls send with batches of the records of a source, including those before an error.
func inBatches(ctx context.Context, source RecordSource, send func([]*rack.AuditRecord) error) error {
	var records []*rack.AuditRecord
	err := source(ctx, func(record *rack.AuditRecord) error {
		if records = append(records, record); len(records) < batchSize {
			return nil
		}
		full := records
		records = make([]*rack.AuditRecord, 0, batchSize)
		return send(full)
	})
	if len(records) > 0 {
		if sendErr := send(records); err == nil {
			err = sendErr
		}
	}
	return err
}

// hash hashes the records. It encodes each in buffer, which it returns for the next batch.
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
