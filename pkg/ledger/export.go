package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// A Format is a file format of records. Both formats have the hashed fields, the hash, and the
// namespace and the name, which follow from the hashed fields. A file has no other data, so every
// change in a file is detected.
type Format string

const (
	// JSONLines has one AuditRecord of the API in JSON per line.
	JSONLines Format = "jsonl"
	// CSV has a line with the names of the fields, and one line per record. A field that a
	// spreadsheet may interpret as a formula, or that begins with an apostrophe, is prefixed with
	// an apostrophe.
	CSV Format = "csv"
)

// maxLine is the maximum length of a line of a file, in bytes. Records that etcd can store are
// shorter.
const maxLine = 4 << 20

// A MalformedError is the error of a file that differs from the output of Export.
type MalformedError struct {
	Line    int // counted from 1
	Message string
}

// Error returns the message with the line.
func (e *MalformedError) Error() string { return fmt.Sprintf("line %d %s", e.Line, e.Message) }

func malformed(line int, format string, args ...any) error {
	return &MalformedError{line, fmt.Sprintf(format, args...)}
}

// A RecordWriter writes records one by one; Flush writes the buffered data.
type RecordWriter interface {
	Write(record *rack.AuditRecord) error
	Flush() error
}

// NewRecordWriter returns a writer of records to w in a format.
func NewRecordWriter(w io.Writer, format Format) (RecordWriter, error) {
	switch format {
	case JSONLines:
		return newJSONWriter(w), nil
	case CSV:
		return newCSVWriter(w, allColumns)
	}
	return nil, fmt.Errorf("unknown format %q: use %s or %s", format, JSONLines, CSV)
}

// ReadFrom returns a source of the records that Export wrote to r, in either format. It can be used
// once.
//
// It fails with a MalformedError at the first line that differs from the output of Export, or is
// out of order. Strict parsing prevents two readers from reading one file differently. Only three
// changes of white space are allowed: a carriage return before a line feed, empty lines between
// records, and a last line without its line feed.
func ReadFrom(r io.Reader) RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		buffered := bufio.NewReaderSize(r, 1<<16)
		first, err := buffered.Peek(1)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		read := readCSV
		if first[0] == '{' {
			read = readJSON
		}
		var namespace, name, chain string
		return read(buffered, func(line int, record *rack.AuditRecord) error {
			if cmp.Or(strings.Compare(record.Name, name), strings.Compare(record.Namespace, namespace)) <= 0 {
				return malformed(line, "is out of order: record %s comes after %s/%s; names must increase", nameIn(record), namespace, name)
			}
			namespace, name = record.Namespace, record.Name
			recordChain, _, ok := SplitName(name)
			if !ok {
				return malformed(line, "has %q for the name of a record", name)
			}
			if recordChain != chain && len(validation.IsDNS1123Subdomain(recordChain)) > 0 {
				return malformed(line, "has %q for the name of a chain; it must be a DNS subdomain", recordChain)
			}
			chain = recordChain
			if record.Time.UnixMicro() < 0 {
				return malformed(line, "has a record of %s; no record is from before 1970", record.Time.UTC().Format(time.RFC3339))
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			return yield(record)
		})
	}
}

// Export writes all records of a source to w.
func Export(ctx context.Context, source RecordSource, w io.Writer, format Format) (count int64, err error) {
	writer, err := NewRecordWriter(w, format)
	if err != nil {
		return 0, err
	}
	err = source(ctx, func(record *rack.AuditRecord) error {
		count++
		return writer.Write(record)
	})
	return count, errors.Join(err, writer.Flush())
}

type jsonWriter struct {
	buffered *bufio.Writer
	encoder  *json.Encoder
}

func newJSONWriter(w io.Writer) *jsonWriter {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	return &jsonWriter{buffered, encoder}
}

func (w *jsonWriter) Write(record *rack.AuditRecord) error {
	external, err := toAPI(record)
	if err != nil {
		return err
	}
	return w.encoder.Encode(external)
}

func (w *jsonWriter) Flush() error { return w.buffered.Flush() }

func readJSON(r io.Reader, yield func(line int, record *rack.AuditRecord) error) error {
	var again bytes.Buffer
	writer := newJSONWriter(&again)
	return decodeJSONLines(r, func(number int, line []byte, record *rack.AuditRecord) error {
		again.Reset()
		if err := errors.Join(writer.Write(record), writer.Flush()); err != nil {
			return err
		}
		if want := trimLineEnd(again.Bytes()); !bytes.Equal(line, want) {
			return malformed(number, "%s", difference(line, want))
		}
		return yield(number, record)
	})
}

func decodeJSONLines(r io.Reader, yield func(number int, line []byte, record *rack.AuditRecord) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	lines.Split(wholeLines)
	number := 1
	for ; lines.Scan(); number++ {
		line := trimLineEnd(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		record, err := decodeJSON(line)
		if err != nil {
			return malformed(number, "%v", err)
		}
		if err := yield(number, line, record); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return malformed(number, "is longer than %d bytes", maxLine)
	}
	return lines.Err()
}

func decodeJSON(line []byte) (*rack.AuditRecord, error) {
	var external v1alpha1.AuditRecord
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&external); err != nil {
		return nil, fmt.Errorf("is not an AuditRecord: %w", err)
	}
	if external.Kind != "AuditRecord" || external.APIVersion != v1alpha1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("is not an AuditRecord of %s, but kind %q of %q", v1alpha1.SchemeGroupVersion, external.Kind, external.APIVersion)
	}
	return FromAPI(&external)
}

// wholeLines splits after each line feed, which is kept: bufio.ScanLines would hide differences
// that the format does not permit.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if end := bytes.IndexByte(data, '\n') + 1; end > 0 {
		return end, data[:end], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// trimLineEnd cuts off a line feed, and a carriage return before it.
func trimLineEnd(line []byte) []byte {
	if trimmed, ok := bytes.CutSuffix(line, []byte("\n")); ok {
		return bytes.TrimSuffix(trimmed, []byte("\r"))
	}
	return line
}

// difference describes the first difference between a line and the output of Export for its record.
func difference(got, want []byte) string {
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	excerpt := func(b []byte) []byte { return b[min(at, len(b)):min(at+32, len(b))] }
	return fmt.Sprintf("is not as macrack-ledger export writes its record: byte %d begins %q, not %q", at+1, excerpt(got), excerpt(want))
}

// toAPI returns a record as files hold it.
func toAPI(record *rack.AuditRecord) (*v1alpha1.AuditRecord, error) {
	external := &v1alpha1.AuditRecord{}
	if err := v1alpha1.Convert_rack_AuditRecord_To_v1alpha1_AuditRecord(record, external, nil); err != nil {
		return nil, err
	}
	external.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("AuditRecord"))
	external.ObjectMeta = metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Name} // The rest is not hashed.
	return external, nil
}

// FromAPI returns a record as the API serves it in the form in which this package works on it.
func FromAPI(external *v1alpha1.AuditRecord) (*rack.AuditRecord, error) {
	record := &rack.AuditRecord{}
	return record, v1alpha1.Convert_v1alpha1_AuditRecord_To_rack_AuditRecord(external, record, nil)
}

type csvWriter struct {
	csv     *csv.Writer
	columns []column
	cells   []string
}

func newCSVWriter(w io.Writer, columns []column) (*csvWriter, error) {
	writer := &csvWriter{csv: csv.NewWriter(w), columns: columns, cells: make([]string, len(columns))}
	return writer, writer.csv.Write(header(columns))
}

func header(columns []column) []string {
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = column.name
	}
	return names
}

// columnsOf returns the columns that a header names; nil if it is not a header of this version or
// of an earlier one, which had fewer columns.
func columnsOf(names []string) []column {
	if len(names) < oldestColumns || len(names) > len(allColumns) || !slices.Equal(names, header(allColumns[:len(names)])) {
		return nil
	}
	return allColumns[:len(names)]
}

func (w *csvWriter) Write(record *rack.AuditRecord) error {
	for i, column := range w.columns {
		w.cells[i] = GuardCell(column.get(record))
	}
	return w.csv.Write(w.cells)
}

func (w *csvWriter) Flush() error {
	w.csv.Flush()
	return w.csv.Error()
}

func readCSV(r io.Reader, yield func(line int, record *rack.AuditRecord) error) error {
	recorded := &recorder{r: r, limit: maxLine}
	reader := csv.NewReader(recorded)
	reader.ReuseRecord = true
	names, err := reader.Read() // sets the number of fields of each line
	if err != nil {
		return malformed(1, "is neither JSON Lines nor CSV: %v", err)
	}
	columns := columnsOf(names)
	if columns == nil {
		return malformed(1, "is neither JSON Lines nor the header of a CSV of AuditRecords: %s", strings.Join(header(allColumns), ","))
	}
	var again bytes.Buffer
	writer, err := newCSVWriter(&again, columns)
	if err != nil {
		return err
	}
	line := 1 // of the end of what was read
	check := func() error {
		if err := writer.Flush(); err != nil {
			return err
		}
		got := recorded.until(reader.InputOffset())
		line += bytes.Count(got, []byte("\n"))
		got, want := trimCSV(got), trimLineEnd(again.Bytes())
		if !bytes.Equal(got, want) {
			first, _ := reader.FieldPos(0)
			return malformed(first, "%s", difference(got, want))
		}
		again.Reset()
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	for {
		cells, err := reader.Read()
		if errors.Is(err, io.EOF) {
			if rest := trimCSV(recorded.until(reader.InputOffset())); len(rest) > 0 {
				return malformed(line, "is not a record: %q", rest)
			}
			return nil
		}
		var syntax *csv.ParseError
		if errors.As(err, &syntax) {
			return malformed(syntax.Line, "is not a record: %v", syntax.Err)
		}
		if errors.Is(err, errTooLong) {
			return malformed(line, "is longer than %d bytes, with the empty lines before it", maxLine)
		}
		if err != nil {
			return err
		}
		first, _ := reader.FieldPos(0)
		record := &rack.AuditRecord{}
		for i, column := range columns {
			if err := column.set(record, unguard(cells[i])); err != nil {
				return malformed(first, "has an invalid field %s: %v", column.name, err)
			}
		}
		record.Lease, record.Instance = cleanReference(record.Lease), cleanReference(record.Instance)
		if err := writer.Write(record); err != nil {
			return err
		}
		if err := check(); err != nil {
			return err
		}
		if err := yield(first, record); err != nil {
			return err
		}
	}
}

// trimCSV removes the permitted white space from a CSV record: empty lines before it, carriage
// returns before line feeds, and the final line feed. Fields of a record have no carriage returns.
func trimCSV(record []byte) []byte {
	if bytes.IndexByte(record, '\r') >= 0 {
		record = bytes.ReplaceAll(record, []byte("\r\n"), []byte("\n"))
	}
	return bytes.TrimSuffix(bytes.TrimLeft(record, "\n"), []byte("\n"))
}

// errTooLong is the error of a record that does not fit in a recorder.
var errTooLong = errors.New("the record is too long")

// A recorder buffers the data read from r until it is requested.
type recorder struct {
	r     io.Reader
	limit int // of the bytes kept while reading more
	kept  []byte
	base  int64 // the number of bytes already returned
}

func (r *recorder) Read(p []byte) (int, error) {
	if len(r.kept) > r.limit {
		return 0, errTooLong
	}
	n, err := r.r.Read(p)
	r.kept = append(r.kept, p[:n]...)
	return n, err
}

// until returns the bytes up to an offset of the file that it has not returned yet. They are good
// until the next Read.
func (r *recorder) until(offset int64) []byte {
	n := offset - r.base
	bytes := r.kept[:n]
	r.kept, r.base = r.kept[n:], offset
	return bytes
}
