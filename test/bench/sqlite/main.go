// Command sqlite answers the questions of a compliance report from SQLite: the highest number of
// concurrent virtual machines, the overlaps of leases of different tenants on a chassis, and the
// releases before their floor.
package main

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	_ "modernc.org/sqlite"
)

const schema = `
CREATE TABLE records (
	chassis TEXT NOT NULL, sequence INTEGER NOT NULL, time INTEGER NOT NULL, type TEXT NOT NULL, tenant TEXT NOT NULL, lease TEXT NOT NULL,
	instance TEXT NOT NULL, bound_at INTEGER, earliest_release_at INTEGER, released_at INTEGER,
	PRIMARY KEY (chassis, sequence)
) WITHOUT ROWID`

// Answer is the output of the program.
type Answer struct {
	Records, Chassis, MaxVMs, Overlaps, FloorBreaches int64

	Seconds float64 // elapsed
	CPU     float64 // CPU seconds
	PeakRSS int64   // bytes
}

var queries = []struct {
	text string
	into func(*Answer) []any
}{
	{`SELECT count(*), count(DISTINCT chassis) FROM records`, func(a *Answer) []any { return []any{&a.Records, &a.Chassis} }},
	{`SELECT coalesce(max(running), 0) FROM (
		SELECT sum(CASE type WHEN 'InstanceStarted' THEN 1 WHEN 'InstanceStopped' THEN -1 ELSE 0 END) OVER (PARTITION BY chassis ORDER BY sequence) AS running
		FROM records)`, func(a *Answer) []any { return []any{&a.MaxVMs} }},
	{`SELECT count(*) FROM (
		SELECT began, max(ended) OVER (PARTITION BY chassis ORDER BY began ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM (
			SELECT chassis, lease, min(time) AS began, CASE WHEN count(*) = 2 THEN max(time) ELSE 9223372036854775807 END AS ended
			FROM records WHERE type IN ('LeaseBound', 'LeaseReleased') GROUP BY chassis, lease))
		WHERE before > began`, func(a *Answer) []any { return []any{&a.Overlaps} }},
	{`SELECT count(*) FROM records WHERE type = 'LeaseReleased' AND (released_at < earliest_release_at OR released_at - bound_at < 86400)`,
		func(a *Answer) []any { return []any{&a.FloorBreaches} }},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sqlite:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "load":
		return load(args[1], args[2])
	case len(args) == 2 && args[0] == "query":
		return query(args[1])
	}
	return errors.New("usage: load <rows> <database> | query <database>")
}

func open(path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=cache_size(-131072)&_pragma=temp_store(memory)&_pragma=synchronous(off)")
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

// load reads rows of tab-separated columns without NULL.
func load(rows, path string) (err error) {
	db, err := open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.Exec(schema); err != nil {
		return err
	}
	file, err := os.Open(rows)
	if err != nil {
		return err
	}
	defer file.Close()
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	insert, err := tx.Prepare(`INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''))`)
	if err != nil {
		return err
	}
	values := make([]any, 10)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		for i, column := range strings.Split(lines.Text(), "\t") {
			values[i] = column
		}
		if _, err := insert.Exec(values...); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	_, err = db.Exec("ANALYZE")
	return err
}

func query(path string) error {
	db, err := open(path)
	if err != nil {
		return err
	}
	defer db.Close()
	answer := Answer{}
	start, before := time.Now(), usage()
	for _, q := range queries {
		if err := db.QueryRow(q.text).Scan(q.into(&answer)...); err != nil {
			return err
		}
	}
	answer.Seconds = time.Since(start).Seconds()
	after := usage()
	answer.CPU = float64(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) / 1e9
	answer.PeakRSS = after.Maxrss << 10 // Linux only; for information
	return json.NewEncoder(os.Stdout).Encode(answer)
}

// usage returns the resource usage of this process.
func usage() syscall.Rusage {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it cannot fail for the process itself
	}
	return u
}
