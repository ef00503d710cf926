package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/rack"
)

// odd returns a ledger of records that have every field and odd texts in them.
func odd(t *testing.T) *memory {
	m := newMemory()
	filler := randfill.NewWithSeed(7).NilChance(0.2).NumElements(0, 3).Funcs(
		func(*metav1.ObjectMeta, randfill.Continue) {},
		func(s *string, c randfill.Continue) { *s = randomText(c.Rand) },
		func(ts *metav1.Time, c randfill.Continue) { *ts = metav1.NewTime(start) },
		func(ts *metav1.MicroTime, c randfill.Continue) { *ts = metav1.NewMicroTime(start) },
	)
	for i := range 200 {
		var record rack.AuditRecord
		filler.Fill(&record)
		record.Chassis.SerialNumber = fmt.Sprint("C07MAC", i%3)
		record.Tenant = "acme"
		record.Type = rack.NodeRecovered
		m.append(t, &record)
	}
	record := m.append(t, NewNodeRecovered(newNode("mac1"), "=HYPERLINK(\"x\")", "'quoted"))
	require.Equal(t, "'quoted", record.Details.Message)
	return m
}

func TestExportIsReadBackTheSame(t *testing.T) {
	m := odd(t)
	for _, format := range []Format{JSONLines, CSV} {
		t.Run(string(format), func(t *testing.T) {
			var file bytes.Buffer
			count, err := Export(context.Background(), m.source(), &file, format)
			require.NoError(t, err)
			assert.Equal(t, int64(201), count)
			status := reportOn(t, ReadFrom(bytes.NewReader(file.Bytes())), m.anchors(), "24h", start)
			assert.Equal(t, rack.ComplianceCompliant, status.Verdict, status.Violations)
			assert.Equal(t, int64(201), status.Records)

			var again bytes.Buffer
			_, err = Export(context.Background(), ReadFrom(&file), &again, format)
			require.NoError(t, err)
			assert.Equal(t, count, int64(len(m.records)))
			if format == JSONLines {
				assert.Contains(t, again.String(), `"creationTimestamp":"2026-08-01T12:00:00Z"`)
			} else {
				assert.Contains(t, again.String(), `"'=HYPERLINK(""x"")",''quoted`, "no formula for a spreadsheet")
			}
		})
	}
}

func TestExportWritesTheSameTwice(t *testing.T) {
	m := odd(t)
	for _, format := range []Format{JSONLines, CSV} {
		var first, second bytes.Buffer
		_, err := Export(context.Background(), m.source(), &first, format)
		require.NoError(t, err)
		_, err = Export(context.Background(), ReadFrom(bytes.NewReader(first.Bytes())), &second, format)
		require.NoError(t, err)
		assert.Equal(t, first.String(), second.String())
	}
}

func TestAnEditOfAnExportShows(t *testing.T) {
	m := history(t)
	for _, format := range []Format{JSONLines, CSV} {
		var file bytes.Buffer
		_, err := Export(context.Background(), m.source(), &file, format)
		require.NoError(t, err)
		edited := strings.Replace(file.String(), "two run", "one ran", 1)
		status := reportOn(t, ReadFrom(strings.NewReader(edited)), nil, "7d", m.clock.Now())
		require.Len(t, status.Violations, 1)
		assert.Contains(t, status.Violations[0].Message, "acme/c07mac2-000000000002 was edited")
	}
}

func TestReadFromRefuses(t *testing.T) {
	var file bytes.Buffer
	_, err := Export(context.Background(), history(t).source(), &file, CSV)
	require.NoError(t, err)
	header, rest, _ := strings.Cut(file.String(), "\n")
	first, _, _ := strings.Cut(rest, "\n")
	for name, test := range map[string]struct{ file, message string }{
		"no record":            {"hello\n", `"hello" is not a field of one`},
		"JSON of another kind": {`{"kind":"Pod","apiVersion":"v1"}`, "is not an AuditRecord of rack.macrack.io/v1alpha1, but Pod of v1"},
		"half a line":          {`{"kind":"AuditR`, "line 1 is not an AuditRecord"},
		"an unknown field":     {`{"kind":"AuditRecord","apiVersion":"rack.macrack.io/v1alpha1","extra":1}`, `unknown field "extra"`},
		"a CSV without hashes": {"namespace,name\nacme,x\n", "the CSV has no field uid"},
		"a field twice":        {header + ",name\n", `"name" is not a field`},
		"a bad time":           {header + "\n" + strings.Replace(first, "2026-08-01T12:00:00.000000Z", "yesterday", 1), "line 2, field time"},
		"a bad number":         {header + "\n" + strings.Replace(first, ",1,,", ",one,,", 1), "line 2, field sequence"},
		"a short line":         {header + "\nacme,x\n", "wrong number of fields"},
	} {
		err := ReadFrom(strings.NewReader(test.file))(context.Background(), func(*rack.AuditRecord) error { return nil })
		assert.ErrorContains(t, err, test.message, name)
	}
	require.NoError(t, ReadFrom(strings.NewReader(""))(context.Background(), func(*rack.AuditRecord) error { return nil }))
	_, err = Export(context.Background(), Records(), &file, "xml")
	assert.ErrorContains(t, err, `unknown format "xml": use jsonl or csv`)

	full := errors.New("disk full")
	_, err = Export(context.Background(), history(t).source(), failingWriter{full}, JSONLines)
	assert.ErrorIs(t, err, full)
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
