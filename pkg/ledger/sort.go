package ledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"macrack.io/macrack/pkg/apis/rack"
)

// maxRuns is the maximum number of sorted runs, such as namespaces, in unsorted records.
const maxRuns = 1 << 14

// Sorted returns a source of the records of another source, sorted by name. The other source may be
// sorted by namespace first, as the API lists records. Sorted keeps the records in a temporary
// file, not in memory.
func Sorted(source RecordSource) RecordSource {
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) (err error) {
		file, err := os.CreateTemp("", "macrack-ledger-*")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close(), os.Remove(file.Name())) }()
		runs, err := spool(ctx, source, file)
		if err != nil {
			return err
		}
		return Merge(runs...)(ctx, yield)
	}
}

// spool writes records to file, and returns a source for each sorted run.
func spool(ctx context.Context, source RecordSource, file *os.File) (runs []RecordSource, err error) {
	out := &countingWriter{w: bufio.NewWriterSize(file, 1<<16)}
	writer := newJSONWriter(out)
	var begin int64
	last := ""
	end := func() error {
		if err := writer.Flush(); err != nil {
			return err
		}
		if len(runs) == maxRuns {
			return fmt.Errorf("%w, and neither are those of each namespace", ErrNotInOrder)
		}
		from, length := begin, out.n-begin
		runs = append(runs, func(_ context.Context, yield func(*rack.AuditRecord) error) error {
			return decodeJSONLines(io.NewSectionReader(file, from, length), func(_ int, _ []byte, record *rack.AuditRecord) error { return yield(record) })
		})
		begin = out.n
		return nil
	}
	err = source(ctx, func(record *rack.AuditRecord) error {
		if record.Name < last {
			if err := end(); err != nil {
				return err
			}
		}
		last = record.Name
		return writer.Write(record)
	})
	if err != nil {
		return nil, err
	}
	if err := end(); err != nil {
		return nil, err
	}
	return runs, out.w.Flush()
}

type countingWriter struct {
	w *bufio.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
