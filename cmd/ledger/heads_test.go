package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/rules"
)

func TestVerifyExpectsTheKnownHeads(t *testing.T) {
	s := newServer(t)
	for _, format := range []string{"jsonl", "csv"} {
		t.Run(format, func(t *testing.T) {
			path := export(t, s, format)
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			file := string(content)
			heads := filepath.Join(t.TempDir(), "heads.txt")

			out, err := run("", "verify", path, "--heads", heads)
			require.NoError(t, err)
			written, err := os.ReadFile(heads)
			require.NoError(t, err)
			assert.Contains(t, out, fmt.Sprintf("heads: chains=2 sha256=%x\nledger: records=1200 chains=2 broken=0\n", sha256.Sum256(written)))
			out, err = run(file, "verify", "-", "--expect", heads)
			require.NoError(t, err)
			assert.Contains(t, out, "expected: the heads of 2 chains, written 2026-09-15T12:00:00Z\nledger: records=1200 chains=2 broken=0\n")
			_, err = run("", "report", path, "--expect", heads)
			require.NoError(t, err)

			lines := strings.SplitAfter(strings.TrimSuffix(file, "\n"), "\n")
			title := len(lines) - 1200
			for name, test := range map[string]struct {
				file  string
				lines []string // of the output
				err   string
			}{
				"empty":   {"", []string{"gone: all records of c07mac0 (1 to 600)", "ledger: records=0 chains=0 broken=2"}, "the ledger is broken"},
				"a title": {strings.Join(lines[:title], ""), []string{"ledger: records=0 chains=0 broken=2"}, "the ledger is broken"},
				"no tail": {strings.Join(lines[:1190+title], ""), []string{"broken: records 591 to 600 are missing at the end of chain c07mac1; its head is record 600",
					"ledger: records=1190 chains=2 broken=1"}, "the ledger is broken"},
				"no chain": {strings.Join(lines[:600+title], ""), []string{"gone: all records of c07mac1 (1 to 600)", "ledger: records=600 chains=1 broken=1"}, "the ledger is broken"},
				"no beginning": {strings.Join(slices.Delete(slices.Clone(lines), title, title+2), ""), []string{"gone: records 1 to 2 of c07mac0",
					"broken: records 1 to 2 are missing before acme/c07mac0-000000000003, without a checkpoint that records the expiry", "ledger: records=1198 chains=2 broken=1"}, "the ledger is broken"},
				"half a line": {file[:len(file)-20], []string{"ledger: not verified"}, "the file is not an export of a ledger"},
			} {
				for _, flag := range []string{"--expect", "--heads"} {
					out, err := run(test.file, "verify", "-", flag, heads)
					assert.EqualError(t, err, test.err, name)
					assert.Equal(t, 1, exitCode(err), name)
					for _, line := range test.lines {
						assert.Contains(t, out, line+"\n", name)
					}
					left, err := os.ReadFile(heads)
					require.NoError(t, err)
					assert.Equal(t, string(written), string(left), "%s: the heads stay", name)
				}
				_, err = run(test.file, "report", "-", "--expect", heads)
				assert.Error(t, err, name)
				assert.Equal(t, 1, exitCode(err), name)
			}

			require.NoError(t, os.WriteFile(heads, written[:len(written)-100], 0o600))
			_, err = run(file, "verify", "-", "--expect", heads)
			assert.ErrorContains(t, err, "truncated or edited")
			assert.Equal(t, 2, exitCode(err))
		})
	}
}

func TestHeadsFollowTheLedger(t *testing.T) {
	s := newServer(t)
	heads, old := filepath.Join(t.TempDir(), "heads.txt"), filepath.Join(t.TempDir(), "old.txt")
	before := export(t, s, "jsonl")
	_, err := run("", "verify", before, "--heads", heads)
	require.NoError(t, err)
	first, err := os.ReadFile(heads)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(old, first, 0o600))

	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-0"}, Spec: rack.MacNodeSpec{SerialNumber: "C07MAC0"}}
	require.NoError(t, ledger.Append(context.Background(), s, testingclock.NewFakePassiveClock(now), ledger.NewNodeRecovered(node, "Rebooted", "")))
	var after bytes.Buffer
	require.NoError(t, (&exportOptions{format: "jsonl", output: "-"}).run(context.Background(), s.list, &after, &bytes.Buffer{}))
	_, err = run(after.String(), "verify", "-", "--heads", heads)
	require.NoError(t, err)
	second, err := os.ReadFile(heads)
	require.NoError(t, err)
	assert.NotEqual(t, first, second)

	out, err := run("", "verify", before, "--heads", heads)
	assert.EqualError(t, err, "the ledger is broken", "an export that was rolled back")
	assert.Contains(t, out, "broken: record 601 is missing at the end of chain c07mac0")
	_, err = run(after.String(), "verify", "-", "--heads", heads, "--expect", old)
	assert.ErrorContains(t, err, "exists and is not the file of --expect")
	assert.Equal(t, 2, exitCode(err))
	out, err = run(after.String(), "verify", "-", "--expect", old)
	require.NoError(t, err, "older heads than the last are continued also: what they say when they were written is printed")
	assert.Contains(t, out, "expected: the heads of 2 chains, written 2026-09-15T12:00:00Z")
}

// A recorded loss of history is printed, and does not prevent that heads are written.
func TestVerifyARecordedLoss(t *testing.T) {
	s := newServer(t)
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-0"}, Spec: rack.MacNodeSpec{SerialNumber: "C07MAC0"}}
	node.Status.Quarantine = &rack.Quarantine{Reason: string(rules.LedgerBehind), Message: "3 records are missing"}
	loss := ledger.NewNodeQuarantined(node)
	loss.Details.WitnessedSequence, loss.Details.WitnessedHash = 603, "d"
	require.NoError(t, ledger.Append(t.Context(), s, testingclock.NewFakePassiveClock(now), loss))
	var exported bytes.Buffer
	require.NoError(t, (&exportOptions{format: "jsonl", output: "-"}).run(t.Context(), s.list, &exported, &bytes.Buffer{}))

	heads := filepath.Join(t.TempDir(), "heads.txt")
	for range 2 { // the second time, the heads are expected
		out, err := run(exported.String(), "verify", "-", "--heads", heads)
		require.NoError(t, err)
		assert.Contains(t, out, "lost: 3 records are missing\n")
		assert.NotContains(t, out, "broken: ")
		assert.Contains(t, out, "heads: chains=2")
		assert.Contains(t, out, "lost history: chains=1; reports on the time of the loss are Incomplete\nledger: records=1201 chains=2 broken=0\n")
	}

	lines := strings.SplitAfter(exported.String(), "\n")
	tampered := strings.Join(append(lines[:5:5], lines[6:]...), "")
	out, err := run(tampered, "verify", "-")
	assert.EqualError(t, err, "the ledger is broken")
	assert.Contains(t, out, "lost: 3 records")
	assert.Contains(t, out, "broken=1\n")
}

// forged returns a JSON Lines export of a server whose records are all forged, with hashes and
// links that fit, from a time on.
func forged(t *testing.T, s *server, from time.Time, edit func(*rack.AuditRecord)) string {
	var file bytes.Buffer
	writer, err := ledger.NewRecordWriter(&file, ledger.JSONLines)
	require.NoError(t, err)
	chain, previous := "", ""
	require.NoError(t, ledger.Sorted(records(s.list))(t.Context(), func(record *rack.AuditRecord) error {
		if ledger.Chain(record) != chain {
			chain, previous = ledger.Chain(record), ""
		}
		record.Time.Time = from.Add(time.Duration(record.Sequence) * time.Second)
		record.PreviousHash = previous
		edit(record)
		record.Hash = ledger.Hash(record)
		previous = record.Hash
		return writer.Write(record)
	}))
	require.NoError(t, writer.Flush())
	return file.String()
}

func TestForgedLedgersDoNotContinueTheHeads(t *testing.T) {
	s := newServer(t)
	heads := filepath.Join(t.TempDir(), "heads.txt")
	path := export(t, s, "jsonl")
	_, err := run("", "verify", path, "--heads", heads)
	require.NoError(t, err)
	written, err := os.ReadFile(heads)
	require.NoError(t, err)
	for date, from := range map[string]time.Time{
		"before 1970": time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), "1970": time.Unix(0, 0), "60 days ago": now.Add(-60 * 24 * time.Hour), "now": now,
		"year 9999": time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		file := forged(t, s, from, func(*rack.AuditRecord) {})
		for _, flag := range []string{"--expect", "--heads"} {
			out, err := run(file, "verify", "-", flag, heads)
			assert.Error(t, err, date)
			assert.Equal(t, 1, exitCode(err), date)
			assert.NotContains(t, out, "broken=0", date)
			left, err := os.ReadFile(heads)
			require.NoError(t, err)
			assert.Equal(t, string(written), string(left), "%s: the heads stay", date)
		}
		for _, window := range []string{"24h", "90d", "2026-06-01..2026-06-28", "2026-08-01..2026-08-02"} {
			out, err := run(file, "report", "-", "--expect", heads, "--window", window)
			assert.Error(t, err, "%s, window %s", date, window)
			assert.Equal(t, 1, exitCode(err), "%s, window %s", date, window)
			assert.NotContains(t, out, "verdict: Compliant", "%s, window %s", date, window)
		}
	}

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	oneChain := strings.Join(strings.SplitAfter(string(content), "\n")[:600], "")
	_, err = run(oneChain, "report", "-", "--expect", heads, "--window", "24h")
	assert.EqualError(t, err, "the verdict is Incomplete", "a chain is missing whose last record is older than the window")
}

// TestHeadsCanBeReadAgain has exports that would make heads which cannot be decoded.
func TestHeadsCanBeReadAgain(t *testing.T) {
	s := newServer(t)
	for name, serial := range map[string]string{"a space": "c07 mac1", "a line feed": "c07\nmac1", "a letter that is no ASCII": "c07m\u00e4c1", "a full stop": ".c07mac1"} {
		heads := filepath.Join(t.TempDir(), "heads.txt")
		file := forged(t, s, now, func(record *rack.AuditRecord) {
			if record.Chassis.SerialNumber == "C07MAC1" {
				record.Chassis.SerialNumber = serial
				record.Name = ledger.Name(serial, record.Sequence)
			}
		})
		file = strings.Join(slices.Sorted(strings.SplitAfterSeq(file, "\n")), "")
		out, err := run(file, "verify", "-", "--heads", heads)
		assert.EqualError(t, err, "the file is not an export of a ledger", name)
		assert.Contains(t, out, "for the name of a chain; it must be a DNS subdomain", name)
		assert.NoFileExists(t, heads, name)
	}
}
