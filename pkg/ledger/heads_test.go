package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

func TestHeadsAreReadBackTheSame(t *testing.T) {
	heads := headsOf(t, small(t))
	file := heads.Encode()
	again, err := DecodeHeads(file)
	require.NoError(t, err)
	assert.Equal(t, heads, again)
	assert.Regexp(t, `^macrack-ledger heads, version 1, written 2026-08-01T13:00:00Z
c07mac1 1 2026-08-01T12:00:00.000000Z 3 2026-08-01T13:00:00.000000Z [0-9a-f]{64}
c07mac2 1 2026-08-01T13:00:00.000000Z 1 2026-08-01T13:00:00.000000Z [0-9a-f]{64}
tenant-globex 1 .* 1 .* [0-9a-f]{64}
end chains=3 sha256=[0-9a-f]{64}
$`, string(file))
	empty := NewHeads(start)
	again, err = DecodeHeads(empty.Encode())
	require.NoError(t, err)
	assert.Equal(t, empty, again)
}

// TestEditedHeadsAreRefused edits each byte and each line, and cuts the file anywhere.
func TestEditedHeadsAreRefused(t *testing.T) {
	file := string(headsOf(t, small(t)).Encode())
	mutations(file, func(name, mutated string) {
		if mutated != file {
			_, err := DecodeHeads([]byte(mutated))
			require.Error(t, err, "%s: %s", name, mutated)
		}
	})
	_, err := DecodeHeads(nil)
	assert.ErrorContains(t, err, "not a file of heads")
	_, err = DecodeHeads([]byte(file[:len(file)/2]))
	assert.ErrorContains(t, err, "truncated or edited; restore it from a copy")
	lines := strings.SplitAfter(file, "\n")
	_, err = DecodeHeads([]byte(strings.Join(slices.Delete(lines, 1, 2), "")))
	assert.ErrorContains(t, err, "truncated or edited")
}

func TestHeadsOfAChainAreReadStrictly(t *testing.T) {
	head := Head{Sequence: 12, Hash: strings.Repeat("0a", 32), Time: start}
	encoded := string(head.Encode())
	decoded, err := DecodeHead([]byte(encoded))
	require.NoError(t, err)
	assert.Equal(t, head, decoded)
	mutations(encoded, func(_, mutated string) {
		if decoded, err := DecodeHead([]byte(mutated)); err == nil {
			require.Equal(t, mutated, string(decoded.Encode()))
		}
	})
	for _, value := range []string{
		"", "12", "x " + head.Hash + " 0", "+12 " + head.Hash + " 0", "0 " + head.Hash + " 0", "-1 " + head.Hash + " 0", "12  " + head.Hash + " 0",
		"12 " + strings.ToUpper(head.Hash) + " 0", "12 0a 0", "12 " + head.Hash + " 1.5", encoded + " 1", encoded + "\n", " " + encoded,
	} {
		_, err := DecodeHead([]byte(value))
		assert.ErrorContains(t, err, "is not the head of a chain", value)
	}
}

func TestAnExportMustContinueTheHeads(t *testing.T) {
	m := daily(t, 10)
	heads := headsOf(t, m)
	known := slices.Clone(m.records)
	forked := &memory{clock: m.clock, keys: map[string][]byte{}}
	for range 15 {
		forked.append(t, NewNodeQuarantined(newNode("mac1")))
		forked.append(t, NewNodeQuarantined(newNode("mac2")))
	}
	for range 5 {
		m.append(t, NewNodeQuarantined(newNode("mac1")))
		m.append(t, NewNodeQuarantined(newNode("mac2")))
		m.append(t, NewNodeQuarantined(newNode("mac3")))
		m.step(24 * time.Hour)
	}
	today := m.clock.Now()
	without := func(chain string, first, last int64) []*rack.AuditRecord {
		return slices.DeleteFunc(slices.Clone(m.records), func(r *rack.AuditRecord) bool {
			return Chain(r) == chain && first <= r.Sequence && r.Sequence <= last
		})
	}
	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		records []*rack.AuditRecord
		now     time.Time
		broken  []string // what is said of it
	}{
		"all records":                  {m.records, today, nil},
		"the same records":             {known, today, nil},
		"no records":                   {nil, today, []string{"records 1 to 10 are missing at the end of chain c07mac1", "records 1 to 10 are missing at the end of chain c07mac2"}},
		"a chain is missing":           {without("c07mac2", 1, 15), today, []string{"records 1 to 10 are missing at the end of chain c07mac2"}},
		"new records are missing":      {without("c07mac2", 11, 15), today, nil},
		"a known record is missing":    {without("c07mac2", 10, 15), today, []string{"record 10 is missing at the end of chain c07mac2"}},
		"the beginning is missing":     {without("c07mac1", 1, 3), today, []string{"records 1 to 3 are missing before macrack-system/c07mac1-000000000004"}},
		"the first record is missing":  {without("c07mac1", 1, 1), today.Add(70 * day), []string{"record 1 is missing before"}},
		"a new chain begins late":      {without("c07mac3", 1, 2), today, []string{"records 1 to 2 are missing before"}},
		"all was written again":        {forked.records, today, []string{"was replaced", "was replaced"}},
		"the beginning is expired":     {without("c07mac1", 1, 3), start.Add(rules.MinimumAuditRetention + 5*day), nil},
		"more than that is missing":    {without("c07mac1", 1, 10), start.Add(rules.MinimumAuditRetention + 5*day), []string{"record 10 is missing before"}},
		"all that was known, expired":  {without("c07mac1", 1, 10), start.Add(rules.MinimumAuditRetention + 11*day), nil},
		"all that is there, expired":   {without("c07mac1", 1, 15), start.Add(rules.MinimumAuditRetention + 50*day), nil},
		"an unknown record is missing": {without("c07mac1", 1, 11), start.Add(rules.MinimumAuditRetention + 50*day), []string{"record 11 is missing before"}},
	} {
		records := slices.Clone(test.records)
		slices.SortFunc(records, func(a, b *rack.AuditRecord) int { return strings.Compare(a.Name, b.Name) })
		statuses, err := Report(t.Context(), Records(records...), heads.Anchors(test.now, rules.MinimumAuditRetention), Everything(test.now))
		require.NoError(t, err, name)
		assert.EqualValues(t, len(test.broken), statuses[0].BrokenChains, "%s: %v", name, statuses[0].Violations)
		var messages []string
		for _, violation := range statuses[0].Violations {
			messages = append(messages, violation.Message)
		}
		for _, message := range test.broken {
			assert.Contains(t, strings.Join(messages, "\n"), message, name)
		}
	}
}
