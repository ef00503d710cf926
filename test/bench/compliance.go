package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
)

const (
	reportCommand = "report-of" // starts this program as a separate reporting process
	reportWindow  = "90d"
	breachOnEvery = 100 // one in so many Macs has a lease that was released before its floor
)

// answer is the output of a reporting process. SQLite's has the same fields.
type answer struct {
	Records, Chassis, MaxVMs, Overlaps, FloorBreaches int64

	Seconds float64 // elapsed
	CPU     float64 // CPU seconds, which are more reliable on a busy machine
	PeakRSS int64   // bytes
}

// reportChild reports on a file of stored records, and prints the answer.
func reportChild(path, at string) error {
	now, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return err
	}
	window, err := ledger.ParseWindow(reportWindow, now)
	if err != nil {
		return err
	}
	debug.SetGCPercent(400) // as macrack-ledger does
	start, cpu := time.Now(), cpuTime()
	statuses, err := ledger.Report(context.Background(), storedRecords(path), nil, window)
	if err != nil {
		return err
	}
	s := statuses[0]
	a := answer{Records: s.Records, Chassis: s.Chassis, MaxVMs: s.MaxVMs, Overlaps: s.Overlaps, FloorBreaches: s.FloorBreaches,
		Seconds: time.Since(start).Seconds(), CPU: (cpuTime() - cpu).Seconds()}
	if a.PeakRSS, err = peakRSS(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// storedRecords reads the records of a file. It decodes several pages at once, as those of several
// namespaces.
func storedRecords(path string) ledger.RecordSource {
	type page struct {
		values  [][]byte
		records []*rack.AuditRecord
		err     error
		done    chan struct{}
	}
	codec := apiserver.Codecs.CodecForVersions(storageSerializer, storageSerializer, rackv1alpha1.SchemeGroupVersion, apiruntime.InternalGroupVersioner)
	decode := func(p *page) { // as macrack-apiserver does
		defer close(p.done)
		var decoder auditrecord.Decoder
		for _, value := range p.values {
			record := &rack.AuditRecord{}
			if !decoder.Decode(value, record) {
				if p.err = apiruntime.DecodeInto(codec, value, record); p.err != nil {
					return
				}
			}
			p.records = append(p.records, record)
		}
	}
	return func(ctx context.Context, yield func(*rack.AuditRecord) error) error {
		pages := make(chan *page, runtime.GOMAXPROCS(0))
		var readErr error
		go func() {
			defer close(pages)
			p := &page{done: make(chan struct{})}
			flush := func() {
				pages <- p
				go decode(p)
				p = &page{done: make(chan struct{})}
			}
			readErr = readPairs(path, func(_ string, value []byte) error {
				if p.values = append(p.values, bytes.Clone(value)); len(p.values) == 500 {
					flush()
				}
				return nil
			})
			flush()
		}()
		for p := range pages {
			<-p.done
			for _, record := range p.records {
				if err := yield(record); err != nil {
					return err
				}
			}
			if p.err != nil {
				return p.err
			}
		}
		return readErr
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it cannot fail for the process itself
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// peakRSS returns the peak memory of this process. The value of getrusage would include that of the
// parent process.
func peakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	_, err = fmt.Sscanf(after, "%d kB", &kib)
	return kib << 10, err
}

// measureCompliance compares the report on a ledger with SQL on the same rows. Both read from the
// system's cache of the disk. MacRack decodes the stored records and verifies each hash and each
// chain; SQLite reads prepared columns and verifies nothing.
func (b *bench) measureCompliance(ctx context.Context) error {
	records, err := b.records(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	database := filepath.Join(b.dir, "sqlite.db")
	sqlite := filepath.Join(b.cluster.Bin(), "bench-sqlite")
	if _, err := output(ctx, sqlite, "load", records.rows, database); err != nil {
		return err
	}
	now := time.Now().Add(time.Second).UTC().Format(time.RFC3339)
	var all [2][]answer
	for range b.rounds {
		for i, command := range [][]string{{self, reportCommand, records.stored, now}, {sqlite, "query", database}} {
			out, err := output(ctx, command[0], command[1:]...)
			if err != nil {
				return err
			}
			var a answer
			if err := json.Unmarshal(out, &a); err != nil {
				return err
			}
			all[i] = append(all[i], a)
		}
	}
	facts := func(a answer) [5]int64 { return [5]int64{a.Records, a.Chassis, a.MaxVMs, a.Overlaps, a.FloorBreaches} }
	if ours, peer := facts(all[0][0]), facts(all[1][0]); ours != peer || ours[0] != records.count {
		return fmt.Errorf("records, chassis, most VMs, overlaps, floor breaches: %v of %d records by the report, %v by SQL", ours, records.count, peer)
	}
	each := func(answers []answer, f func(answer) float64) (values []float64) {
		for _, a := range answers {
			values = append(values, f(a))
		}
		return values
	}
	seconds := func(a answer) float64 { return a.Seconds }
	memory := func(a answer) float64 { return float64(a.PeakRSS) / 1e6 }
	cpu := func(a answer) float64 { return a.CPU }
	name := fmt.Sprintf("report on %d records, decoded and verified", records.count)
	b.less(name+", to SQLite", "s", each(all[0], seconds), each(all[1], seconds), 1)
	b.less("the same, CPU time", "s", each(all[0], cpu), each(all[1], cpu), 0)
	b.alone("the same", "s", each(all[0], seconds), 2)
	b.alone("the same, peak memory", "MB", each(all[0], memory), 256)
	return nil
}

func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(program), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
