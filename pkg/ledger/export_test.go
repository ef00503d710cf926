package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
				assert.Contains(t, again.String(), `"metadata":{"name":"c07mac0-000000000001","namespace":"acme"}`, "no metadata that is not hashed")
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
	m := history(t)
	export := func(format Format) (lines []string) {
		var file bytes.Buffer
		_, err := Export(t.Context(), m.source(), &file, format)
		require.NoError(t, err)
		return strings.SplitAfter(file.String(), "\n")
	}
	jsonLines, csvLines := export(JSONLines), export(CSV)
	one := jsonLines[0]
	object := strings.TrimSuffix(one, "\n")
	header, first := csvLines[0], csvLines[1]
	const other = "is not as macrack-ledger export writes its record: byte "
	swap := func(s, old, new string) string {
		require.Contains(t, s, old)
		return strings.Replace(s, old, new, 1)
	}
	for name, test := range map[string]struct{ file, message string }{
		"no record":                {"hello\n", "line 1 is neither JSON Lines nor the header of a CSV"},
		"JSON of another kind":     {`{"kind":"Pod","apiVersion":"v1"}`, `is not an AuditRecord of rack.macrack.io/v1alpha1, but kind "Pod" of "v1"`},
		"half a line":              {`{"kind":"AuditR`, "line 1 is not an AuditRecord"},
		"an unknown field":         {swap(one, `{"kind"`, `{"extra":1,"kind"`), `unknown field "extra"`},
		"a key in capitals":        {swap(one, `"tenant":`, `"Tenant":`), other},
		"a key twice":              {swap(one, `"tenant":"acme"`, `"tenant":"globex","tenant":"acme"`), other},
		"a key twice, in capitals": {swap(one, `"tenant":"acme"`, `"TENANT":"globex","tenant":"acme"`), other},
		"an empty key twice":       {swap(one, `"tenant":"acme"`, `"tenant":null,"tenant":"acme"`), other},
		"keys in another order":    {swap(one, `"name":"c07mac1-000000000001","namespace":"acme"`, `"namespace":"acme","name":"c07mac1-000000000001"`), other},
		"text after an object":     {object + " hello\n", other},
		"two objects in a line":    {object + jsonLines[1], other},
		"a space":                  {swap(one, `":`, `": `), other},
		"a space at the end":       {object + " \n", other},
		"a line of spaces":         {one + "  \n", "line 2 is not an AuditRecord"},
		"an escape":                {swap(one, "acme", `\u0061cme`), other},
		"a byte that is no text":   {swap(one, `"tenant":"acme"`, "\"tenant\":\"acme\xff\""), other},
		"a label":                  {swap(one, `"metadata":{`, `"metadata":{"labels":{"a":"b"},`), other},
		"a UID":                    {swap(one, `"metadata":{`, `"metadata":{"uid":"0",`), other},
		"a creation time":          {swap(one, `"metadata":{`, `"metadata":{"creationTimestamp":"2026-08-01T12:00:00Z",`), other},
		"a fraction of a second":   {swap(one, `"boundAt":"2026-08-01T12:00:00Z"`, `"boundAt":"2026-08-01T12:00:00.5Z"`), other},
		"nanoseconds":              {swap(one, `12:00:00.000000Z"`, `12:00:00.000000001Z"`), "line 1 is not an AuditRecord"},
		"another time zone":        {swap(one, `"boundAt":"2026-08-01T12:00:00Z"`, `"boundAt":"2026-08-01T14:00:00+02:00"`), other},
		"a number with a point":    {swap(one, `"sequence":1`, `"sequence":1.0`), "line 1 is not an AuditRecord"},
		"a byte order mark":        {"\ufeff" + one, "line 1 is neither"},
		"an array":                 {"[" + object + "]", "line 1 is neither"},
		"lines swapped":            {jsonLines[1] + one, "line 2 is out of order"},
		"a line twice":             {one + one, "line 2 is out of order"},
		"no name":                  {swap(one, `"name":"c07mac1-000000000001"`, `"name":"one"`), `has "one" for the name of a record`},
		"a long line":              {one + "{" + strings.Repeat(" ", maxLine), fmt.Sprintf("line 2 is longer than %d bytes", maxLine)},

		"a chain with a space": {swap(one, `"name":"c07mac1-`, `"name":"c07 mac1-`), `has "c07 mac1" for the name of a chain; it must be a DNS subdomain`},
		"a chain in capitals":  {swap(one, `"name":"c07mac1-`, `"name":"C07MAC1-`), `has "C07MAC1" for the name of a chain`},
		"a chain of two lines": {swap(one, `"name":"c07mac1-`, `"name":"c07\nmac1-`), `for the name of a chain`},

		"a chain with a space, CSV":    {header + swap(first, "acme,c07mac1-", "acme,c07 mac1-"), `has "c07 mac1" for the name of a chain`},
		"a CSV without hashes":         {"namespace,name\nacme,x\n", "line 1 is neither"},
		"a field twice":                {swap(header, "\n", ",name\n"), "line 1 is neither"},
		"columns swapped":              {swap(header, "namespace,name", "name,namespace") + swap(first, "acme,c07mac1-000000000001", "c07mac1-000000000001,acme"), "line 1 is neither"},
		"a bad time":                   {header + swap(first, "2026-08-01T12:00:00.000000Z", "yesterday"), "line 2 has an invalid field time"},
		"a bad number":                 {header + swap(first, ",1,,", ",one,,"), "line 2 has an invalid field sequence"},
		"a number with a sign":         {header + swap(first, ",1,,", ",+1,,"), "line 2 " + other},
		"a short line":                 {header + "acme,x\n", "line 2 is not a record: wrong number of fields"},
		"half a quoted text":           {header + first[:len(first)-2] + "\"", "line 2 is not a record"},
		"quotes that are not needed":   {header + swap(first, "acme,", `"acme",`), "line 2 " + other},
		"quotes in the header":         {swap(header, "namespace,", `"namespace",`) + first, "line 1 " + other},
		"an apostrophe":                {header + swap(first, "acme,", `'acme,`), "line 2 " + other},
		"a fraction, CSV":              {header + swap(first, ",2026-08-01T12:00:00Z,", ",2026-08-01T12:00:00.5Z,"), "line 2 " + other},
		"lines swapped, CSV":           {header + csvLines[2] + first, "line 3 is out of order"},
		"a line of spaces, CSV":        {header + first + "  \n", "line 3 is not a record: wrong number of fields"},
		"a line of tabs at the end":    {header + first + "\t", "line 3 is not a record: wrong number of fields"},
		"a carriage return for a line": {header + first + "\r" + csvLines[2], "line 3 "},
	} {
		err := ReadFrom(strings.NewReader(test.file))(t.Context(), func(*rack.AuditRecord) error { return nil })
		assert.ErrorContains(t, err, test.message, name)
		assert.ErrorAs(t, err, new(*MalformedError), name)
	}
	require.NoError(t, ReadFrom(strings.NewReader(""))(t.Context(), func(*rack.AuditRecord) error { return nil }))
	_, err := Export(t.Context(), Records(), &bytes.Buffer{}, "xml")
	assert.ErrorContains(t, err, `unknown format "xml": use jsonl or csv`)

	full := errors.New("disk full")
	_, err = Export(t.Context(), m.source(), failingWriter{full}, JSONLines)
	assert.ErrorIs(t, err, full)
}

// TestWhiteSpaceThatTheFormatAllows has all changes of an export that do not matter.
func TestWhiteSpaceThatTheFormatAllows(t *testing.T) {
	m := history(t)
	m.append(t, NewNodeRecovered(newNode("mac3"), "Rebooted", "two\n\nlines"))
	for _, format := range []Format{JSONLines, CSV} {
		var file, again bytes.Buffer
		_, err := Export(t.Context(), m.source(), &file, format)
		require.NoError(t, err)
		text := file.String()
		for name, changed := range map[string]string{
			"nothing":                  text,
			"carriage returns":         strings.ReplaceAll(text, "\n", "\r\n"),
			"no line feed at the end":  strings.TrimSuffix(text, "\n"),
			"empty lines at the end":   text + "\n\r\n",
			"empty lines before lines": strings.ReplaceAll(strings.ReplaceAll(text, "\n{", "\n\r\n\n{"), "\nacme,", "\n\r\n\nacme,"),
		} {
			again.Reset()
			_, err = Export(t.Context(), ReadFrom(strings.NewReader(changed)), &again, format)
			require.NoError(t, err, "%s: %s", format, name)
			assert.Equal(t, text, again.String(), "%s: %s", format, name)
		}
	}
}

// A quoted field that does not end.
type openQuote struct{ read int }

func (q *openQuote) Read(p []byte) (int, error) {
	const line = "a line of text\n"
	n := copy(p, strings.Repeat(line, len(p)/len(line)+1))
	q.read += n
	if q.read > 64*maxLine {
		return 0, errors.New("all of the file was read")
	}
	return n, nil
}

func TestARecordOfACSVIsBounded(t *testing.T) {
	m := history(t)
	lines := strings.SplitAfter(exported(t, m, CSV), "\n")
	for name, test := range map[string]struct{ before, message string }{
		"in a record":   {lines[0] + lines[1] + `acme,"`, fmt.Sprintf("line 3 is longer than %d bytes", maxLine)},
		"in the header": {`namespace,"`, "line 1 is neither JSON Lines nor CSV"},
	} {
		rest := &openQuote{}
		err := ReadFrom(io.MultiReader(strings.NewReader(test.before), rest))(t.Context(), func(*rack.AuditRecord) error { return nil })
		assert.ErrorContains(t, err, test.message, name)
		assert.ErrorAs(t, err, new(*MalformedError), name)
		assert.Less(t, rest.read, 2*maxLine, "%s: what was read of the file", name)
	}

	text := strings.Repeat("long text\n", maxLine/20)
	m.append(t, &rack.AuditRecord{Type: rack.NodeRecovered, Chassis: rack.AuditChassis{SerialNumber: "C07MAC9"}, Details: rack.AuditDetails{Reason: text}})
	long := m.records[len(m.records)-1]
	long.Details.Reason = text // Append shortens it.
	long.Hash = Hash(long)
	var read *rack.AuditRecord
	require.NoError(t, ReadFrom(strings.NewReader(exported(t, m, CSV)))(t.Context(), func(r *rack.AuditRecord) error { read = r; return nil }))
	assert.Equal(t, text, read.Details.Reason, "a record within the limit is read whole")
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// Files of earlier versions do not have the last columns.
func TestReadFromAnEarlierVersion(t *testing.T) {
	m := history(t)
	var file bytes.Buffer
	writer, err := newCSVWriter(&file, allColumns[:oldestColumns])
	require.NoError(t, err)
	require.NoError(t, m.source()(t.Context(), func(record *rack.AuditRecord) error { return writer.Write(record) }))
	require.NoError(t, writer.Flush())
	assert.NotContains(t, file.String(), "details.className")

	status := reportOn(t, ReadFrom(&file), nil, "7d", m.clock.Now())
	assert.Empty(t, status.Violations)
	assert.NotZero(t, status.Records)
}
