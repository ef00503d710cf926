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

// small returns a ledger of three chains whose records have every kind of field, and texts that files must quote.
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

// withoutFreeSpace returns a file without the white space that the format allows: carriage returns before line feeds, empty
// lines between records, and the line feed at its end, which it has.
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

// mutations calls yield with every edit of a kind of an export: of each byte, key and line, and of its length.
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
	renamed := strings.ReplaceAll(exported(t, m, JSONLines), `"name":"c07mac1-`, `"name":"C07MAC1-`)
	statuses, err := Report(t.Context(), ReadFrom(strings.NewReader(renamed)), nil, Everything(m.clock.Now()))
	require.NoError(t, err)
	require.EqualValues(t, 1, statuses[0].BrokenChains)
	assert.Contains(t, statuses[0].Violations[0].Message, "acme/C07MAC1-000000000001 is misplaced: it says that it is c07mac1-000000000001")
}
