package ledger

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

// small returns a ledger of three chains whose records have every kind of field, and texts that
// files must quote.
func small(t testing.TB) *memory {
	m := newMemory()
	lease, node := newLease("acme", "build"), newNode("mac1")
	m.bind(t, lease, node)
	m.step(time.Hour)
	started := NewInstanceStarted(newInstance(lease, "vm"), lease, 1)
	started.Actor = rack.AuditActor{Username: "alice", UID: "7", Groups: []string{"dev", "a \"b\", <c>"}}
	started.RequestID = "=1+1"
	m.append(t, started)
	rejected := NewInstanceRejected(newInstance(lease, "x"), lease, rack.LayerRegistry, "NoFreeSlot", "'two\n\nrun\u2028ß")
	rejected.Details.Count = 7
	m.append(t, rejected)
	recovered := NewNodeRecovered(newNode("mac2"), "Rebooted", "")
	recovered.Details.LocalVMs = ptr.To[int32](0)
	m.append(t, recovered)
	m.append(t, &rack.AuditRecord{Type: rack.InstanceRejected, Tenant: "globex", Details: rack.AuditDetails{Reason: "NoSuchLease"}})
	return m
}

func exported(t testing.TB, m *memory, format Format) string {
	var file bytes.Buffer
	_, err := Export(context.Background(), m.source(), &file, format)
	require.NoError(t, err)
	return file.String()
}

func headsOf(t testing.TB, m *memory) *Heads {
	heads := NewHeads(m.clock.Now())
	require.NoError(t, m.source()(context.Background(), func(record *rack.AuditRecord) error {
		heads.Add(record)
		return nil
	}))
	return heads
}

// verifies reports whether a file is of an unbroken ledger that continues heads.
func verifies(ctx context.Context, file string, heads *Heads, now time.Time) bool {
	statuses, err := Report(ctx, ReadFrom(strings.NewReader(file)), heads.Anchors(now, rules.MinimumAuditRetention), Everything(now))
	return err == nil && statuses[0].BrokenChains == 0
}

// withoutFreeSpace returns a file without the white space that the format allows: carriage returns
// before line feeds, empty lines between records, and the line feed at its end, which it has.
func withoutFreeSpace(file string) string {
	csv := !strings.HasPrefix(file, "{")
	var b strings.Builder
	quoted := false
	for line := range strings.SplitSeq(strings.ReplaceAll(file, "\r\n", "\n"), "\n") {
		if line == "" && !quoted {
			continue
		}
		b.WriteString(line + "\n")
		if csv && strings.Count(line, `"`)%2 == 1 {
			quoted = !quoted
		}
	}
	return b.String()
}

// mutations calls yield with every edit of a kind of an export: of each byte, key and line, and of
// its length.
func mutations(file string, yield func(name, mutated string)) {
	for i := range len(file) {
		c := file[i]
		for _, replaced := range []string{"", string(c ^ 0x20), string([]byte{c + 1}), string([]byte{c ^ 0x80}), "0", `"`} {
			yield("byte replaced", file[:i]+replaced+file[i+1:])
		}
		for _, inserted := range []string{string(c), " ", "\n", "\r", "\r\n", "\ufeff", "0", `"`, "'"} {
			yield("byte inserted", file[:i]+inserted+file[i:])
		}
		yield("cut", file[:i])
		yield("begun later", file[i:])
	}
	key := regexp.MustCompile(`"([a-zA-Z]+)":("(?:[^"\\]|\\.)*"|[0-9]+|\[[^]]*\])`)
	for _, at := range key.FindAllStringSubmatchIndex(file, -1) {
		before, pair, name, value, after := file[:at[0]], file[at[0]:at[1]], file[at[2]:at[3]], file[at[4]:at[5]], file[at[1]:]
		for _, edited := range []string{
			"", pair + "," + pair, `"` + strings.ToUpper(name) + `":` + value, `"` + strings.ToUpper(name) + `":"x",` + pair, pair + `,"` + strings.ToUpper(name) + `":"x"`,
			`"` + name + `":null`, `"` + name + `":null,` + pair, `"` + name + `":{}`, `"` + name + `" : ` + value, `"x":1,` + pair, pair + `,"uid":"u"`, pair + `,"labels":{"a":"b"}`,
			`"` + name[:1] + `\u00` + "6" + `":` + value, `"` + name + `":[` + value + `]`,
		} {
			yield("key edited", before+edited+after)
			yield("key and comma edited", before+edited+strings.TrimPrefix(after, ","))
		}
	}
	lines := strings.SplitAfter(strings.TrimSuffix(file, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	for i := range lines {
		yield("line removed", strings.Join(slices.Delete(slices.Clone(lines), i, i+1), ""))
		for j := range lines {
			yield("line copied", strings.Join(slices.Insert(slices.Clone(lines), j, lines[i]), ""))
			yield("line replaced", strings.Join(slices.Replace(slices.Clone(lines), j, j+1, lines[i]), ""))
			swapped := slices.Clone(lines)
			swapped[i], swapped[j] = swapped[j], swapped[i]
			yield("lines swapped", strings.Join(swapped, ""))
			if i < j {
				yield("lines removed", strings.Join(slices.Delete(slices.Clone(lines), i, j+1), ""))
			}
		}
		yield("lines joined", strings.Join(lines[:i], "")+strings.TrimSuffix(lines[i], "\n")+strings.Join(lines[i+1:], ""))
	}
	yield("twice", file+file)
}

func TestNoMutationOfAnExportVerifies(t *testing.T) {
	m := small(t)
	heads := headsOf(t, m)
	for _, format := range []Format{JSONLines, CSV} {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()
			file := exported(t, m, format)
			require.True(t, verifies(t.Context(), file, heads, m.clock.Now()))
			require.Equal(t, file, withoutFreeSpace(file))
			tried, free := 0, 0
			mutations(file, func(name, mutated string) {
				tried++
				switch {
				case !verifies(t.Context(), mutated, heads, m.clock.Now()):
				case withoutFreeSpace(mutated) != file:
					t.Fatalf("%s: verifies: %q", name, mutated)
				case mutated != file:
					free++
				}
			})
			t.Logf("%d mutations, %d of allowed white space", tried, free)
			assert.Positive(t, free)
		})
	}
}

// FuzzTamperedExport looks for a file that verifies although it is not the export.
func FuzzTamperedExport(f *testing.F) {
	m := small(f)
	heads := headsOf(f, m)
	originals := map[string]bool{}
	for _, format := range []Format{JSONLines, CSV} {
		file := exported(f, m, format)
		originals[file] = true
		f.Add([]byte(file))
		f.Add([]byte(strings.ReplaceAll(file, "\n", "\r\n\n")))
		f.Add([]byte(strings.Replace(file, "tenant", "Tenant", 1)))
		f.Add([]byte(strings.Replace(file, "acme", "globex", 1)))
		f.Add([]byte(file + "{}"))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if verifies(t.Context(), string(file), heads, m.clock.Now()) {
			require.True(t, originals[withoutFreeSpace(string(file))], "%q", file)
		}
	})
}

func TestAChainHasOneName(t *testing.T) {
	m := small(t)
	for _, record := range m.records {
		record.Name = strings.ReplaceAll(record.Name, "c07mac1-", "C07MAC1-")
	}
	statuses, err := Report(t.Context(), m.source(), nil, Everything(m.clock.Now()))
	require.NoError(t, err)
	require.EqualValues(t, 1, statuses[0].BrokenChains)
	assert.Contains(t, statuses[0].Violations[0].Message, "acme/C07MAC1-000000000001 is misplaced: its fields identify it as c07mac1-000000000001")
}

// forgedDates are times that a forger can give to the first record of a chain.
var forgedDates = map[string]time.Time{
	"year 1":         time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC),
	"before 1970":    time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC),
	"1970":           time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
	"60 days before": start.Add(-60 * 24 * time.Hour),
	"the same":       start,
	"a year later":   start.Add(365 * 24 * time.Hour),
	"year 9999":      time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC),
}

// forge returns the records with another tenant, dated from a time on, and with hashes and links
// that fit, but for those that keep chooses: these are as they were.
func forge(records []*rack.AuditRecord, from time.Time, keep func(*rack.AuditRecord) bool) []*rack.AuditRecord {
	previous := map[string]string{}
	var forged []*rack.AuditRecord
	for i, record := range records {
		record = record.DeepCopy()
		if !keep(record) {
			record.Details.Message = "forged"
			record.Time.Time = from.Add(time.Duration(i) * time.Second)
			record.PreviousHash = previous[Chain(record)]
			record.Hash = Hash(record)
		}
		previous[Chain(record)] = record.Hash
		forged = append(forged, record)
	}
	return forged
}

// TestNoForgeryContinuesTheHeads forges records of any dates, with all hashes, and reports on them
// in each window. Where a window has no break, all of its records must be genuine.
func TestNoForgeryContinuesTheHeads(t *testing.T) {
	m := daily(t, 10)
	heads := headsOf(t, m)
	last := func(r *rack.AuditRecord) bool { return r.Sequence == 10 }
	without := func(drop func(*rack.AuditRecord) bool) func([]*rack.AuditRecord) []*rack.AuditRecord {
		return func(records []*rack.AuditRecord) []*rack.AuditRecord { return slices.DeleteFunc(records, drop) }
	}
	none := func(*rack.AuditRecord) bool { return false }
	longer := &memory{clock: m.clock, keys: m.keys, records: slices.Clone(m.records)}
	for range 3 {
		longer.append(t, NewNodeQuarantined(newNode("mac1")))
		longer.append(t, NewNodeQuarantined(newNode("mac2")))
	}
	now := m.clock.Now()
	for name, test := range map[string]struct {
		records []*rack.AuditRecord
		keep    func(*rack.AuditRecord) bool
		edit    func([]*rack.AuditRecord) []*rack.AuditRecord
		until   time.Time // windows from then on may be compliant; zero: none
	}{
		"all records":                   {m.records, none, nil, time.Time{}},
		"all records and more":          {longer.records, none, nil, time.Time{}},
		"all but the tail":              {m.records, none, without(func(r *rack.AuditRecord) bool { return r.Sequence > 6 }), time.Time{}},
		"all, and one chain is missing": {m.records, none, without(func(r *rack.AuditRecord) bool { return r.Chassis.NodeName == "mac2" }), time.Time{}},
		"all, without the head":         {longer.records, none, without(last), time.Time{}},
		"all, from behind the head":     {longer.records, none, without(func(r *rack.AuditRecord) bool { return r.Sequence < 12 }), time.Time{}},
		"all, with the hash of the head": {longer.records, none, func(records []*rack.AuditRecord) []*rack.AuditRecord {
			hashes := map[string]string{}
			for _, r := range records {
				switch r.Sequence {
				case 10:
					r.Hash = heads.Chains[Chain(r)].Hash
				case 11:
					r.PreviousHash = heads.Chains[Chain(r)].Hash
					r.Hash = Hash(r)
				case 12, 13:
					r.PreviousHash = hashes[Chain(r)]
					r.Hash = Hash(r)
				}
				hashes[Chain(r)] = r.Hash
			}
			return records
		}, time.Time{}},
		"all but the head":                     {m.records, last, nil, now.Add(-24 * time.Hour)},
		"the first five":                       {m.records, func(r *rack.AuditRecord) bool { return r.Sequence > 5 }, nil, start.Add(5 * 24 * time.Hour)},
		"the first five, without the earliest": {m.records, func(r *rack.AuditRecord) bool { return r.Sequence > 5 }, without(func(r *rack.AuditRecord) bool { return r.Sequence < 3 }), start.Add(5 * 24 * time.Hour)},
	} {
		for date, from := range forgedDates {
			forged := forge(test.records, from, test.keep)
			if test.edit != nil {
				forged = test.edit(forged)
			}
			for _, age := range []time.Duration{0, 30 * 24 * time.Hour, 200 * 24 * time.Hour} {
				now := now.Add(age)
				file := exported(t, &memory{records: forged}, JSONLines)
				assert.False(t, verifies(t.Context(), file, heads, now), "%s, %s, after %s", name, date, age)

				windows := []Window{Everything(now)}
				for _, window := range []string{"24h", "90d", "300d", "2026-05-01..2026-06-15", "2026-08-02..2026-08-05", "2026-08-08..2026-08-11"} {
					w, err := ParseWindow(window, now)
					require.NoError(t, err)
					windows = append(windows, w)
				}
				// Also a reader that takes records of any time.
				statuses, err := Report(t.Context(), (&memory{records: forged}).source(), heads.Anchors(now, rules.MinimumAuditRetention), windows...)
				require.NoError(t, err)
				for i, w := range windows {
					if test.until.IsZero() || w.From.Before(test.until) {
						assert.Equal(t, rack.ComplianceIncomplete, statuses[i].Verdict, "%s, %s, after %s, window %s", name, date, age, w.Name)
						assert.Positive(t, statuses[i].BrokenChains, "%s, %s, after %s, window %s", name, date, age, w.Name)
					}
				}
			}
		}
	}
}

func TestReadFromRefusesTimesBefore1970(t *testing.T) {
	m := small(t)
	for date, refused := range map[string]bool{"year 1": true, "before 1970": true, "1970": false, "60 days before": false} {
		for _, format := range []Format{JSONLines, CSV} {
			file := exported(t, &memory{records: forge(m.records, forgedDates[date], func(*rack.AuditRecord) bool { return false })}, format)
			err := ReadFrom(strings.NewReader(file))(t.Context(), func(*rack.AuditRecord) error { return nil })
			if refused {
				assert.ErrorContains(t, err, "no record is from before 1970", date)
				assert.ErrorAs(t, err, new(*MalformedError), date)
			} else {
				assert.NoError(t, err, date)
			}
		}
	}
}
