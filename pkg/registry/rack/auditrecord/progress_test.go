package auditrecord

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
)

func TestProgress(t *testing.T) {
	assert.Equal(t, "the report reads all 1000000 records of the ledger: 20% after 1s, about 4s left", progress(200_000, 1_000_000, time.Second))
	assert.Equal(t, "the report reads all 1000000 records of the ledger: 99% after 1s, about 1s left", progress(999_000, 1_000_000, time.Second))
	assert.Equal(t, "the report reads all 1000000 records of the ledger", progress(0, 1_000_000, time.Second))
	assert.Equal(t, "the report reads all 1000000 records of the ledger", progress(1_000_001, 1_000_000, time.Second))
}

func TestAnnounced(t *testing.T) {
	texts := make(chan string, 1)
	ctx := WithAnnounce(t.Context(), func(text string) { texts <- text })
	source, stop := announced(ctx, ledger.Records(&rack.AuditRecord{}, &rack.AuditRecord{}), 2, 0)
	<-texts
	stop()
	read := 0
	require.NoError(t, source(ctx, func(*rack.AuditRecord) error {
		read++
		return nil
	}))
	assert.Equal(t, 2, read)

	_, stop = announced(ctx, source, 2, time.Hour)
	stop()
	assert.Empty(t, texts)
	_, stop = announced(t.Context(), source, 2, 0)
	stop()
	assert.Empty(t, texts, "no user waits")
}
