package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
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
