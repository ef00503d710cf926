// Package simulate replays a trace of jobs through the floor rule and through other policies, with
// a virtual clock, and compares their costs and waits.
package simulate

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// Job is a job of a trace.
type Job struct {
	// QueuedAt is the time at which the job entered the queue.
	QueuedAt time.Time
	// Duration is the time for which it runs on a machine.
	Duration time.Duration
}

// header is the first line of a trace.
var header = []string{"queuedAt", "seconds"}

// ReadTrace reads a trace: a CSV file with the columns queuedAt, in RFC 3339, and seconds. The jobs
// are returned in the order of the queue.
func ReadTrace(r io.Reader) ([]Job, error) {
	rows := csv.NewReader(r)
	rows.FieldsPerRecord = len(header)
	var jobs []Job
	for line := 1; ; line++ {
		row, err := rows.Read()
		switch {
		case errors.Is(err, io.EOF) && len(jobs) > 0:
			slices.SortStableFunc(jobs, func(a, b Job) int { return a.QueuedAt.Compare(b.QueuedAt) })
			return jobs, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("the trace has no jobs; add lines such as 2026-03-02T09:00:00Z,720")
		case err != nil:
			return nil, err
		case line == 1:
			if !slices.Equal(row, header) {
				return nil, fmt.Errorf("line 1: columns are %q; they must be %q", row, header)
			}
			continue
		}
		queued, err := time.Parse(time.RFC3339, row[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: invalid queuedAt %q; use a time such as 2026-03-02T09:00:00Z", line, row[0])
		}
		seconds, err := strconv.Atoi(row[1])
		if err != nil || seconds < 1 {
			return nil, fmt.Errorf("line %d: invalid seconds %q; use a whole number of 1 or more", line, row[1])
		}
		jobs = append(jobs, Job{queued, time.Duration(seconds) * time.Second})
	}
}

// WriteTrace writes a trace in the form that ReadTrace reads.
func WriteTrace(w io.Writer, jobs []Job) error {
	rows := csv.NewWriter(w)
	_ = rows.Write(header)
	for _, j := range jobs {
		_ = rows.Write([]string{j.QueuedAt.UTC().Format(time.RFC3339), strconv.Itoa(int(j.Duration.Seconds()))})
	}
	rows.Flush()
	return rows.Error()
}
