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

func TestAhead(t *testing.T) {
	records := manyRecords()
	var got []*rack.AuditRecord
	take := func(record *rack.AuditRecord) error { got = append(got, record); return nil }
	require.NoError(t, Ahead(t.Context(), Records(records...))(t.Context(), take))
	assert.Equal(t, records, got)

	failed := errors.New("failed")
	got = nil
	source := func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		return errors.Join(Records(records[:5]...)(ctx, yield), failed)
	}
	assert.ErrorIs(t, Ahead(t.Context(), source)(t.Context(), take), failed)
	assert.Equal(t, records[:5], got, "what came before the error")

	ctx, cancel := context.WithCancel(t.Context())
	ahead := Ahead(ctx, Records(records...))
	cancel()
	assert.ErrorIs(t, ahead(t.Context(), take), context.Canceled)
}

func TestParts(t *testing.T) {
	anchor := func(sequence, checkpoint int64) Anchor {
		a := Anchor{Head: &Head{Sequence: sequence}}
		if checkpoint > 0 {
			a.Checkpoint = &Head{Sequence: checkpoint}
		}
		return a
	}
	anchors := Anchors{
		"a": anchor(600, 0), "b": anchor(1600, 1000), "c": anchor(300, 0), "d": anchor(5000, 0), "e": anchor(10, 0), "e-f": anchor(2000, 0),
		"expired": {Checkpoint: &Head{Sequence: 7}},
	}
	assert.Equal(t, []string{"b-000000000000", "d-000000000000", "e-000000000000", "e-f-000000000000"}, anchors.Parts(1000))
	assert.Empty(t, anchors.Parts(1_000_000))
	assert.Empty(t, Anchors(nil).Parts(1))
	assert.IsIncreasing(t, anchors.Parts(1))
}
