package rules

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func at(sequence int64, hash string) ChainPosition { return ChainPosition{sequence, hash} }

func TestJudgeHistory(t *testing.T) {
	for _, tt := range []struct {
		name       string
		seen, head ChainPosition
		stored     string
		want       History
	}{
		{"the Mac has seen nothing", at(0, ""), at(3, "c"), "?", HistoryIntact},
		{"neither has any record", at(0, ""), at(0, ""), "?", HistoryIntact},
		{"the same record", at(3, "c"), at(3, "c"), "?", HistoryIntact},
		{"the chain has continued", at(3, "c"), at(5, "e"), "c", HistoryIntact},
		{"the record has expired", at(3, "c"), at(5, "e"), "", HistoryIntact},
		{"the server is empty", at(3, "c"), at(0, ""), "?", LedgerBehind},
		{"the server has lost a record", at(3, "c"), at(2, "b"), "?", LedgerBehind},
		{"the server has lost a record and written another", at(3, "c"), at(3, "x"), "?", LedgerForked},
		{"the server has lost a record and written more", at(3, "c"), at(5, "z"), "x", LedgerForked},
	} {
		got, err := JudgeHistory(tt.seen, tt.head, func() (string, error) {
			assert.NotEqual(t, "?", tt.stored, tt.name)
			return tt.stored, nil
		})
		require.NoError(t, err)
		assert.Equal(t, tt.want, got, tt.name)
		assert.Equal(t, got != HistoryIntact, LostHistory(string(got)), tt.name)
	}
	down := errors.New("etcd is down")
	_, err := JudgeHistory(at(1, "a"), at(2, "b"), func() (string, error) { return "", down })
	assert.ErrorIs(t, err, down)
	assert.False(t, LostHistory("KernelQuotaStuck"))
}

func TestWitnessFacts(t *testing.T) {
	for _, tt := range []struct {
		name                string
		f                   WitnessFacts
		confirmed, advances bool
	}{
		{"a new Mac", WitnessFacts{}, true, false},
		{"a new Mac with an old chain", WitnessFacts{Head: at(7, "g")}, true, true},
		{"nothing new", WitnessFacts{Seen: at(3, "c"), Head: at(3, "c"), Reported: at(3, "c")}, true, false},
		{"a new record", WitnessFacts{Seen: at(3, "c"), Head: at(4, "d"), Reported: at(3, "c")}, true, true},
		{"not reported yet", WitnessFacts{Seen: at(3, "c"), Head: at(4, "d"), Reported: at(2, "b")}, false, false},
		{"an empty server", WitnessFacts{Seen: at(3, "c")}, false, false},
		{"a restored server, before the report", WitnessFacts{Seen: at(3, "c"), Head: at(2, "b"), Reported: at(2, "b")}, false, false},
		{"a restored server that has continued", WitnessFacts{Seen: at(3, "c"), Head: at(9, "z")}, false, false},
		{"in quarantine for lost history", WitnessFacts{Seen: at(3, "c"), Head: at(3, "x"), Reported: at(3, "c"), Lost: true}, false, false},
		{"in another quarantine", WitnessFacts{Seen: at(3, "c"), Head: at(4, "d"), Reported: at(3, "c")}, true, true},
		{"the loss was accepted", WitnessFacts{Seen: at(9, "i"), Head: at(4, "x"), Reported: at(9, "i"), Accepted: at(9, "i")}, true, true},
		{"a loss that the server has not noticed", WitnessFacts{Seen: at(9, "i"), Head: at(4, "x"), Reported: at(9, "i")}, false, false},
		{"a fork that the server has not noticed", WitnessFacts{Seen: at(9, "i"), Head: at(9, "x"), Reported: at(9, "i"), Accepted: at(8, "h")}, false, false},
	} {
		assert.Equal(t, tt.confirmed, tt.f.Confirmed(), tt.name)
		assert.Equal(t, tt.advances, tt.f.Advances(), tt.name)
	}
}

func TestDescribeHistory(t *testing.T) {
	assert.Empty(t, HistoryIntact.Describe("C07", at(1, "a"), at(1, "a")))
	assert.Contains(t, LedgerBehind.Describe("C07", at(5, "e"), at(2, "b")), "ends at record 2: 3 records are missing")
	assert.Contains(t, LedgerForked.Describe("C07", at(5, "e"), at(5, "x")), "another record 5")
}

func TestCheckWitnessedFloor(t *testing.T) {
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	last, boundAt := noon.Add(-2*time.Hour), noon.Add(-time.Hour)
	for name, tt := range map[string]struct {
		last, boundAt, floor time.Time
		want                 string
	}{
		"a lost lease":                 {last, boundAt, boundAt.Add(MinimumLeaseDuration), ""},
		"with the last record":         {boundAt, boundAt, boundAt.Add(MinimumLeaseDuration), ""},
		"a long one":                   {last, boundAt, boundAt.Add(MaxLeaseDuration), ""},
		"without records":              {time.Time{}, boundAt.Add(-1000 * time.Hour), boundAt, ""},
		"bound just now":               {last, noon, noon.Add(MinimumLeaseDuration), ""},
		"bound in the future":          {last, noon.Add(time.Second), noon.Add(48 * time.Hour), "in the future"},
		"bound before the last record": {last, last.Add(-time.Second), last.Add(48 * time.Hour), "has its records until"},
		"a short floor":                {last, boundAt, boundAt.Add(MinimumLeaseDuration - time.Second), "a floor at"},
		"an endless floor":             {last, boundAt, boundAt.Add(MaxLeaseDuration + time.Second), "lasts at most"},
	} {
		err := CheckWitnessedFloor(noon, tt.last, tt.boundAt, tt.floor)
		if tt.want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, tt.want, name)
		}
	}
}
