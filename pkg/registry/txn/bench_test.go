package txn_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/test/stats"
)

// TestEtcdHelper is the etcd process of the benchmarks.
func TestEtcdHelper(t *testing.T) {
	if os.Getenv("TXN_ETCD") == "" {
		t.Skip("runs as a child of benchmarks")
	}
	endpoint, _ := startEtcd(t, true)
	fmt.Println("endpoint", endpoint)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent goes
}

// childEtcd runs an etcd that syncs to disk, in a process of its own.
func childEtcd(b *testing.B) string {
	cmd := exec.Command(os.Args[0], "-test.run=^TestEtcdHelper$", "-test.v")
	cmd.Env = append(os.Environ(), "TXN_ETCD=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if endpoint, ok := strings.CutPrefix(lines.Text(), "endpoint "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return endpoint
		}
	}
	b.Fatal("no etcd")
	return ""
}

// A variant of creating an instance on a lease.
type variant struct {
	name     string
	planners map[schema.GroupResource]txn.Planner
	create   func(s *Server, i *Instance) error
}

func newRecord(i *Instance) *Record {
	r := &Record{Verb: "create", Subject: i.Name, SubjectUID: i.UID, Lease: i.Lease}
	r.Name = string(uuid.NewUUID())
	r.UID, r.CreationTimestamp = types.UID(r.Name), metav1.Now()
	return r
}

func variants() []variant {
	just := func(s *Server, i *Instance) error {
		_, err := create(ctx, s.Instances, i)
		return err
	}
	return []variant{
		{"stock", nil, just},
		{"planned-alone", map[schema.GroupResource]txn.Planner{Instances: func(context.Context, *txn.Tx, runtime.Object, runtime.Object) error { return nil }}, just},
		{"planned-record", map[schema.GroupResource]txn.Planner{Instances: func(ctx context.Context, tx *txn.Tx, _, new runtime.Object) error {
			return tx.Create(ctx, Records, newRecord(new.(*Instance)))
		}}, just},
		{"planned-lease-chain-record", Planners, just},
		{"stock-three-writes", nil, func(s *Server, i *Instance) error {
			if _, err := change(cluster, s.Leases, i.Lease, func(l *Lease) {
				l.Slots[1] = Occupant{Namespace: "default", Name: i.Name, UID: uuid.NewUUID()}
			}); err != nil {
				return err
			}
			if _, err := create(cluster, s.Records, newRecord(i)); err != nil {
				return err
			}
			_, err := create(ctx, s.Instances, i)
			return err
		}},
	}
}

// BenchmarkPlannedCreate creates instances in different ways, one of each at a
// time, and reports the medians in milliseconds and as multiples of the stock
// store's.
func BenchmarkPlannedCreate(b *testing.B) {
	endpoint := childEtcd(b)
	vs := variants()
	servers := make([]*Server, len(vs))
	took := make([][]time.Duration, len(vs))
	for i, v := range vs {
		servers[i] = startPlanned(b, endpoint, v.planners)
	}
	for n := 0; b.Loop(); n++ {
		for i := range vs {
			i = (i + n) % len(vs)
			name := fmt.Sprintf("%s-%d", vs[i].name, n)
			mustCreate(b, cluster, servers[i].Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if err := vs[i].create(servers[i], instance(name+"-first", name)); err != nil { // it warms up
				b.Fatal(err)
			}
			settle(b, servers[i].Leases, mustGet(b, cluster, servers[i].Leases, name))
			start := time.Now()
			if err := vs[i].create(servers[i], instance(name, name)); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	stock := stats.Median(took[0])
	for i, v := range vs {
		m := stats.Median(took[i])
		b.ReportMetric(float64(m)/1e6, v.name+"-ms")
		b.ReportMetric(float64(m)/float64(stock), v.name+"-x")
	}
}

// BenchmarkRivals has 64 clients of two servers create and delete instances of
// one lease with two slots, each as fast as it can, in rounds of a second.
func BenchmarkRivals(b *testing.B) {
	endpoint := childEtcd(b)
	servers := []*Server{startServer(b, endpoint), startServer(b, endpoint)}
	var commits, refused, gaveUp atomic.Int64
	before := conflicts(b)
	for n := 0; b.Loop(); n++ {
		lease := fmt.Sprint("lease-", n)
		mustCreate(b, cluster, servers[0].Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: lease}})
		start := time.Now()
		var wg sync.WaitGroup
		for w := range 64 {
			wg.Go(func() {
				s := servers[w%2]
				for i := 0; time.Since(start) < time.Second; i++ {
					name := fmt.Sprintf("%s-%d-%d", lease, w, i)
					_, err := create(ctx, s.Instances, instance(name, lease))
					if err == nil {
						commits.Add(1)
						for err = remove(ctx, s.Instances, name); apierrors.IsTooManyRequests(err); err = remove(ctx, s.Instances, name) {
							gaveUp.Add(1)
						}
					}
					switch {
					case err == nil:
						commits.Add(1)
					case apierrors.IsForbidden(err):
						refused.Add(1)
					case apierrors.IsTooManyRequests(err):
						gaveUp.Add(1)
					default:
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	seconds := b.Elapsed().Seconds()
	b.ReportMetric(float64(commits.Load())/seconds, "commits/s")
	b.ReportMetric(float64(refused.Load())/seconds, "refusals/s")
	b.ReportMetric((conflicts(b)-before)/float64(commits.Load()), "conflicts/commit")
	b.ReportMetric(float64(gaveUp.Load()), "gave-up")
}
