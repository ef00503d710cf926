package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
)

// manyRecords is some batches of records and a part of one. Of each seventh, the hash is another's.
func manyRecords() []*rack.AuditRecord {
	var records []*rack.AuditRecord
	for n := range 10*batchSize + 3 {
		record := &rack.AuditRecord{Sequence: int64(n), Tenant: "acme"}
		record.Hash = Hash(record)
		if n%7 == 0 {
			record.Tenant = "globex"
		}
		records = append(records, record)
	}
	return records
}

func TestHashed(t *testing.T) {
	records := manyRecords()
	n := 0
	require.NoError(t, hashed(t.Context(), Records(records...), func(record *rack.AuditRecord, intact bool) error {
		require.Same(t, records[n], record, "in order")
		require.Equal(t, n%7 != 0, intact, "record %d", n)
		n++
		return nil
	}))
	assert.Equal(t, len(records), n)
}

func TestHashedEnds(t *testing.T) {
	records := manyRecords()
	failed := errors.New("failed")
	n := 0
	err := hashed(t.Context(), Records(records...), func(*rack.AuditRecord, bool) error {
		if n++; n == batchSize+5 {
			return failed
		}
		return nil
	})
	assert.ErrorIs(t, err, failed)
	assert.Equal(t, batchSize+5, n, "no record comes after an error")

	source := func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		return errors.Join(Records(records[:5]...)(ctx, yield), failed)
	}
	assert.ErrorIs(t, hashed(t.Context(), source, func(*rack.AuditRecord, bool) error { return nil }), failed)

	ctx, cancel := context.WithCancel(t.Context())
	err = hashed(ctx, Records(records...), func(*rack.AuditRecord, bool) error { cancel(); return nil })
	assert.ErrorIs(t, err, context.Canceled)
}
