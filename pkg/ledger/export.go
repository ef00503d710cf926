package ledger

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// A Format is a form of records in a file. Both keep all that is hashed.
type Format string

const (
	// JSONLines is one AuditRecord of the API in JSON a line.
	JSONLines Format = "jsonl"
	// CSV is a line with the names of the fields, and one line a record. A field that begins with a character
	// that a spreadsheet may take for a formula, or with an apostrophe, has an apostrophe before it.
	CSV Format = "csv"
)

// maxLine bounds a line of a file, in bytes.
const maxLine = 1 << 20

// A RecordWriter writes records one by one; Flush writes what is buffered.
type RecordWriter interface {
	Write(record *rack.AuditRecord) error
	Flush() error
}

// NewRecordWriter returns what writes records to w in a format.
func NewRecordWriter(w io.Writer, format Format) (RecordWriter, error) {
	switch format {
	case JSONLines:
		return newJSONWriter(w), nil
	case CSV:
		return newCSVWriter(w)
	}
	return nil, fmt.Errorf("unknown format %q: use %s or %s", format, JSONLines, CSV)
}

// ReadFrom returns a source of the records that were written to r, in whichever format. It can be used once.
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
		return read(buffered, func(record *rack.AuditRecord) error {
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

func readJSON(r io.Reader, yield func(*rack.AuditRecord) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var external v1alpha1.AuditRecord
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&external); err != nil {
			return fmt.Errorf("line %d is not an AuditRecord: %w", number, err)
		}
		if external.Kind != "AuditRecord" || external.APIVersion != v1alpha1.SchemeGroupVersion.String() {
			return fmt.Errorf("line %d is not an AuditRecord of %s, but %s of %s", number, v1alpha1.SchemeGroupVersion, external.Kind, external.APIVersion)
		}
		record, err := FromAPI(&external)
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if err := yield(record); err != nil {
			return err
		}
	}
	return lines.Err()
}

func toAPI(record *rack.AuditRecord) (*v1alpha1.AuditRecord, error) {
	external := &v1alpha1.AuditRecord{}
	if err := v1alpha1.Convert_rack_AuditRecord_To_v1alpha1_AuditRecord(record, external, nil); err != nil {
		return nil, err
	}
	external.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("AuditRecord"))
	external.ManagedFields, external.ResourceVersion = nil, ""
	return external, nil
}

// FromAPI returns a record as the API serves it in the form in which this package works on it.
func FromAPI(external *v1alpha1.AuditRecord) (*rack.AuditRecord, error) {
	record := &rack.AuditRecord{}
	return record, v1alpha1.Convert_v1alpha1_AuditRecord_To_rack_AuditRecord(external, record, nil)
}

type csvWriter struct {
	csv   *csv.Writer
	cells []string
}

func newCSVWriter(w io.Writer) (*csvWriter, error) {
	writer := &csvWriter{csv: csv.NewWriter(w), cells: make([]string, len(columns))}
	for i, column := range columns {
		writer.cells[i] = column.name
	}
	return writer, writer.csv.Write(writer.cells)
}

func (w *csvWriter) Write(record *rack.AuditRecord) error {
	for i, column := range columns {
		w.cells[i] = guard(column.get(record))
	}
	return w.csv.Write(w.cells)
}

func (w *csvWriter) Flush() error {
	w.csv.Flush()
	return w.csv.Error()
}

func readCSV(r io.Reader, yield func(*rack.AuditRecord) error) error {
	reader := csv.NewReader(r)
	reader.ReuseRecord = true
	header, err := reader.Read()
	if err != nil {
		return fmt.Errorf("neither JSON Lines nor CSV: %w", err)
	}
	byName := map[string]column{}
	for _, column := range columns {
		byName[column.name] = column
	}
	var order []column
	for _, name := range header {
		column, ok := byName[name]
		if !ok {
			return fmt.Errorf("neither JSON Lines nor a CSV of AuditRecords: %q is not a field of one", name)
		}
		delete(byName, name)
		order = append(order, column)
	}
	for _, column := range columns {
		if _, missing := byName[column.name]; missing {
			return fmt.Errorf("the CSV has no field %s: records cannot be verified without", column.name)
		}
	}
	for {
		cells, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		record := &rack.AuditRecord{}
		for i, column := range order {
			if err := column.set(record, unguard(cells[i])); err != nil {
				line, _ := reader.FieldPos(i)
				return fmt.Errorf("line %d, field %s: %w", line, column.name, err)
			}
		}
		record.Lease, record.Instance = cleanReference(record.Lease), cleanReference(record.Instance)
		if err := yield(record); err != nil {
			return err
		}
	}
}
