package ledger

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
)

func TestSorted(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	m := history(t)
	listed := slices.Clone(m.records)
	slices.SortFunc(listed, func(a, b *rack.AuditRecord) int { return strings.Compare(nameIn(a), nameIn(b)) })
	_, err := Report(context.Background(), Records(listed...), nil)
	require.ErrorIs(t, err, ErrNotInOrder)

	status := reportOn(t, Sorted(Records(listed...)), m.anchors(), "7d", m.clock.Now())
	assert.Equal(t, m.report(t, "7d"), status)

	status = reportOn(t, Sorted(Records()), nil, "7d", m.clock.Now())
	assert.Zero(t, status.Records)

	broken := errors.New("broken")
	assert.ErrorIs(t, Sorted(Records(listed...))(context.Background(), func(*rack.AuditRecord) error { return broken }), broken)

	none := Sorted(func(_ context.Context, yield func(*rack.AuditRecord) error) error {
		for range maxRuns + 1 {
			if err := errors.Join(yield(listed[1]), yield(listed[0])); err != nil {
				return err
			}
		}
		return nil
	})
	assert.ErrorIs(t, none(context.Background(), func(*rack.AuditRecord) error { return nil }), ErrNotInOrder)

	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
