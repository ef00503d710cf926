package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/instance"
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

// life builds the ledger of one Mac: a transaction that commits at once.
type life struct {
	clock   *testingclock.FakePassiveClock
	head    []byte
	records []*rack.AuditRecord
}

func (l *life) GetKey(context.Context, string, string) ([]byte, bool, error) {
	return l.head, l.head != nil, nil
}

func (l *life) PutKey(_, _ string, value []byte) error {
	l.head = value
	return nil
}

func (l *life) Create(_ context.Context, _ schema.GroupResource, obj apiruntime.Object) error {
	l.records = append(l.records, obj.(*rack.AuditRecord))
	return nil
}

// live records most of the 90 days before now for Mac n, at least count records: leases of three
// days, each with ten pairs of instances.
func live(ctx context.Context, n, count int, now time.Time) (*life, error) {
	const days = 90
	l := &life{clock: testingclock.NewFakePassiveClock(now.Add(-days*24*time.Hour + time.Hour).Truncate(time.Second))}
	step := days * 24 * time.Hour / time.Duration(count)
	pass := func(d time.Duration) { l.clock.SetTime(l.clock.Now().Add(d)) }
	var err error
	add := func(r *rack.AuditRecord) {
		r.Actor = rack.AuditActor{Username: "system:node:" + macName(n), Groups: []string{"system:nodes", "system:authenticated"}}
		err = errors.Join(err, ledger.Append(ctx, l, l.clock, r))
	}
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: macName(n)}, Spec: rack.MacNodeSpec{SerialNumber: serialOf(n)}}
	for i := 0; len(l.records) < count; i++ {
		bound := metav1.NewTime(l.clock.Now())
		floor := metav1.NewTime(bound.Add(24 * time.Hour))
		lease := &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("tenant-%d", (n+i)%40), Name: fmt.Sprintf("lease-%d", i), UID: types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", n, i))}}
		lease.Status = rack.MacNodeLeaseStatus{BoundAt: &bound, EarliestReleaseAt: &floor, NodeName: node.Name, SerialNumber: node.Spec.SerialNumber}
		add(ledger.NewLeaseBound(lease, node))
		early := i == 0 && n%breachOnEvery == 0
		for j := range 10 {
			if early {
				break
			}
			var pair [2]*instance.MacOSInstance
			pass(step)
			for k := range pair {
				id := (n*100+i)*100 + j*2 + k
				pair[k] = &instance.MacOSInstance{
					ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: fmt.Sprintf("vm-%d-%d", j, k), UID: types.UID(fmt.Sprintf("%08d-0001-4000-8000-%012d", n, id))},
					Spec:       instance.MacOSInstanceSpec{LeaseName: lease.Name},
					Status: instance.MacOSInstanceStatus{
						NodeName: node.Name, SerialNumber: node.Spec.SerialNumber, Phase: instance.MacOSInstanceStopped,
						MachineID: fmt.Sprintf("AAAAAAAAAAAA%010dAA==", id), MACAddress: fmt.Sprintf("06:00:%02x:%02x:%02x:%02x", id>>24&0xff, id>>16&0xff, id>>8&0xff, id&0xff),
					},
				}
				add(ledger.NewInstanceStarted(pair[k], lease, int32(k+1)))
			}
			pass(step)
			for k := range pair {
				add(ledger.NewInstanceStopped(pair[k], lease, int32(1-k)))
			}
		}
		if early {
			pass(12 * time.Hour)
		} else {
			pass(24*time.Hour + step)
		}
		add(ledger.NewLeaseReleased(lease, l.clock.Now(), []string{"macrack.io/unleased:NoSchedule"}))
		pass(time.Minute)
	}
	return l, err
}

// records is the ledger of the fleet, as consecutive keys and values of etcd, and as rows for
// SQLite.
type records struct {
	stored, rows, heads string // files
	count               int64
}

func (b *bench) records(ctx context.Context) (*records, error) {
	r := &records{stored: filepath.Join(b.dir, "records"), rows: filepath.Join(b.dir, "rows"), heads: filepath.Join(b.dir, "heads")}
	if count, err := os.ReadFile(filepath.Join(b.dir, "count")); err == nil {
		_, err := fmt.Sscan(string(count), &r.count)
		return r, err
	}
	stored, err := createFile(r.stored)
	if err != nil {
		return nil, err
	}
	rows, err := createFile(r.rows)
	if err != nil {
		return nil, err
	}
	heads, err := createFile(r.heads)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for n := range b.macs {
		l, err := live(ctx, n, b.perMac, now)
		if err != nil {
			return nil, err
		}
		for _, record := range l.records {
			value, err := storedRecord(record)
			if err != nil {
				return nil, err
			}
			stored.pair(pair{key("rack.macrack.io", "auditrecords", record.Namespace, record.Name), value})
			rows.row(record)
			r.count++
		}
		heads.pair(pair{key("macrack.io/index", ledger.HeadKind, ledger.Chain(l.records[0])), l.head})
	}
	if err := errors.Join(stored.close(), rows.close(), heads.close()); err != nil {
		return nil, err
	}
	return r, os.WriteFile(filepath.Join(b.dir, "count"), fmt.Append(nil, r.count), 0o600)
}

func storedRecord(record *rack.AuditRecord) ([]byte, error) {
	return stored(rackv1alpha1.SchemeGroupVersion, record)
}

type file struct {
	f *os.File
	w *bufio.Writer
}

func createFile(path string) (*file, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &file{f, bufio.NewWriterSize(f, 1<<20)}, nil
}

// close writes the rest; it also returns the errors of earlier writes.
func (f *file) close() error { return errors.Join(f.w.Flush(), f.f.Close()) }

func (f *file) pair(p pair) {
	for _, part := range [][]byte{[]byte(p.key), p.value} {
		_, _ = f.w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		_, _ = f.w.Write(part)
	}
}

func (f *file) row(r *rack.AuditRecord) {
	instance := ""
	if r.Instance != nil {
		instance = string(r.Instance.UID)
	}
	unix := func(t *metav1.Time) string {
		if t == nil {
			return ""
		}
		return fmt.Sprint(t.Unix())
	}
	fmt.Fprintf(f.w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Chassis.SerialNumber, r.Sequence, r.Time.UnixMicro(), r.Type, r.Tenant, r.Lease.UID, instance,
		unix(r.Details.BoundAt), unix(r.Details.EarliestReleaseAt), unix(r.Details.ReleasedAt))
}

// readPairs calls f with each pair of a file. The slices are valid only until f returns.
func readPairs(path string, f func(key string, value []byte) error) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	reader := bufio.NewReaderSize(in, 1<<20)
	var parts [2][]byte
	for {
		for i := range parts {
			var length [4]byte
			if _, err := io.ReadFull(reader, length[:]); i == 0 && errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			n := int(binary.BigEndian.Uint32(length[:]))
			if cap(parts[i]) < n {
				parts[i] = make([]byte, n)
			}
			parts[i] = parts[i][:n]
			if _, err := io.ReadFull(reader, parts[i]); err != nil {
				return err
			}
		}
		if err := f(string(parts[0]), parts[1]); err != nil {
			return err
		}
	}
}

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
	for range min(3, b.rounds) {
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
	middle := func(answers []answer, f func(answer) float64) float64 {
		var values []time.Duration
		for _, a := range answers {
			values = append(values, time.Duration(f(a)*1e9))
		}
		return median(values).Seconds()
	}
	seconds := func(a answer) float64 { return a.Seconds }
	memory := func(a answer) float64 { return float64(a.PeakRSS) / (1 << 20) }
	cpu := func(a answer) float64 { return a.CPU }
	name := fmt.Sprintf("compliance over %d records", records.count)
	b.less(name+", stored ones decoded and proved, to SQLite", "s", middle(all[0], seconds), middle(all[1], seconds), 1)
	b.less(name+", stored ones decoded and proved, to SQLite", "CPU s", middle(all[0], cpu), middle(all[1], cpu), 0)
	b.less(name+", stored ones decoded and proved (bound)", "s", middle(all[0], seconds), 2, 1)
	b.less(name+", peak memory (bound)", "MB", middle(all[0], memory), 256, 1)
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
