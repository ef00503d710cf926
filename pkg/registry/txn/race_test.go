package txn_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// churn creates and deletes instances of a lease from many goroutines.
type churn struct {
	created, deleted, full, exhausted, ambiguous atomic.Int64
}

func (c *churn) run(t testing.TB, goroutines, attempts int, server func() *Server, request func() (context.Context, context.CancelFunc), strict bool) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range attempts {
				name := fmt.Sprintf("i-%d-%d", g, i)
				obj := instance(name, "lease")
				obj.Machine = fmt.Sprint("m-", g%3)
				if i%3 == 0 {
					obj.Finalizers = []string{"toy.example/hold"}
				}
				rctx, cancel := request()
				_, err := create(rctx, server().Instances, obj)
				cancel()
				switch {
				case err == nil:
					c.created.Add(1)
				case apierrors.IsForbidden(err):
					c.full.Add(1)
					continue
				case apierrors.IsTooManyRequests(err):
					c.exhausted.Add(1)
					continue
				default:
					c.ambiguous.Add(1)
					if strict {
						t.Errorf("create %s: %v", name, err)
					}
				}
				time.Sleep(rand.N(2 * time.Millisecond))
				for try := 0; ; try++ { // by any server, until it is gone
					rctx, cancel := request()
					err := remove(rctx, server().Instances, name)
					if err == nil && len(obj.Finalizers) > 0 {
						_, err = change(rctx, server().Instances, name, func(i *Instance) { i.Finalizers = nil })
						if apierrors.IsNotFound(err) { // deleted by an earlier try
							err = nil
						}
					}
					cancel()
					if err == nil {
						c.deleted.Add(1)
						break
					}
					if apierrors.IsNotFound(err) {
						if strict {
							t.Errorf("delete %s: %v", name, err)
						}
						break
					}
					if strict && !apierrors.IsTooManyRequests(err) || try > 200 {
						t.Errorf("delete %s: %v", name, err)
						break
					}
				}
			}
		})
	}
	wg.Wait()
}

func plainRequest() (context.Context, context.CancelFunc) { return ctx, func() {} }

func TestSlots(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	servers := []*Server{startServer(t, endpoint), startServer(t, endpoint)}
	mustCreate(t, cluster, servers[0].Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})

	var c churn
	start := time.Now()
	c.run(t, 64, 20, func() *Server { return servers[rand.IntN(2)] }, plainRequest, true)
	took := time.Since(start)
	// Leave both slots taken.
	for i := range 5 {
		_, err := create(ctx, servers[i%2].Instances, instance(fmt.Sprintf("last-%d", i), "lease"))
		if (err == nil) != (i < 2) {
			t.Errorf("instance %d: %v", i, err)
		}
	}
	st, revisions := replay(t, etcd)
	t.Logf("%v planned again", conflicts(t))
	t.Logf("created %d deleted %d full %d exhausted %d in %v; invariants hold at %d revisions", c.created.Load(), c.deleted.Load(), c.full.Load(), c.exhausted.Load(), took.Round(time.Millisecond), revisions)
	if got, want := int64(len(st.made)), c.created.Load()+2; got != want {
		t.Errorf("%d instances were created, but %d were reported", got, want)
	}
	creates := 0
	for _, r := range st.records {
		if r.Verb == "create" {
			creates++
		}
	}
	if creates != len(st.made) || len(st.instances) != 2 || c.created.Load() != c.deleted.Load() {
		t.Errorf("%d create records of %d instances, %d left", creates, len(st.made), len(st.instances))
	}
}

// Competing writes of one server wait for each other and do not conflict.
func TestCompetingWritesWait(t *testing.T) {
	etcd, servers := newLease(t, 1)
	before := conflicts(t)
	var c churn
	c.run(t, 16, 10, func() *Server { return servers[0] }, plainRequest, true)
	st, _ := replay(t, etcd)
	t.Logf("created %d, full %d", c.created.Load(), c.full.Load())
	if got := conflicts(t) - before; got != 0 || len(st.instances) != 0 {
		t.Errorf("%v conflicts, left %v", got, st.instances)
	}
}

// Writes of one object by one server come one after the other, so that each is planned once.
func TestWritersOfOneObject(t *testing.T) {
	_, servers := newLease(t, 1)
	const writers, writes = 8, 10
	var tries atomic.Int64
	var wg sync.WaitGroup
	for g := range writers {
		wg.Go(func() {
			for i := range writes {
				_, err := change(cluster, servers[0].Leases, "lease", func(l *Lease) {
					tries.Add(1)
					metav1.SetMetaDataAnnotation(&l.ObjectMeta, fmt.Sprint("writer-", g), fmt.Sprint(i))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := tries.Load(); got != writers*writes {
		t.Errorf("%d writes took %d tries", writers*writes, got)
	}
}

func TestBind(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	servers := []*Server{startServer(t, endpoint), startServer(t, endpoint)}
	for i := range 20 {
		mustCreate(t, cluster, servers[0].Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}})
	}
	for i := range 50 {
		mustCreate(t, cluster, servers[0].Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("lease-%d", i)}})
	}
	var wg sync.WaitGroup
	var bound, refused, unbound, exhausted, tries atomic.Int64
	for g := range 64 {
		wg.Go(func() {
			for i := range 20 {
				s := servers[rand.IntN(2)]
				lease, node := fmt.Sprintf("lease-%d", rand.IntN(50)), fmt.Sprintf("node-%d", rand.IntN(20))
				unbind := g < 8 && i < 15 && i%5 == 0
				if unbind {
					node = ""
				}
				_, err := change(cluster, s.Leases, lease, func(l *Lease) { tries.Add(1); l.Node = node })
				switch {
				case err == nil && unbind:
					unbound.Add(1)
				case err == nil:
					bound.Add(1)
				case apierrors.IsConflict(err):
					refused.Add(1)
				case apierrors.IsTooManyRequests(err):
					exhausted.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for l := range 50 { // bind what is left
		for n := range 20 {
			_, _ = change(cluster, servers[n%2].Leases, fmt.Sprintf("lease-%d", l), func(l *Lease) { l.Node = fmt.Sprintf("node-%d", n) })
		}
	}
	st, revisions := replay(t, etcd)
	nodes, leases := map[string]int{}, 0
	for _, l := range st.leases {
		if l.Node != "" {
			leases++
			nodes[l.Node]++
		}
	}
	t.Logf("%d requests took %d tries, %v planned again", 64*20, tries.Load(), conflicts(t))
	t.Logf("bound %d unbound %d refused %d exhausted %d; invariants hold at %d revisions; at the end %d leases on %d nodes", bound.Load(), unbound.Load(), refused.Load(), exhausted.Load(), revisions, leases, len(nodes))
	if leases != 20 || len(nodes) != 20 {
		t.Errorf("%d leases on nodes %v", leases, nodes)
	}
}

func checkCreates(t testing.TB, st state) (creates int) {
	t.Helper()
	for _, r := range st.records {
		if r.Verb == "create" {
			creates++
		}
	}
	if creates != len(st.made) {
		t.Errorf("%d create records of %d instances", creates, len(st.made))
	}
	return creates
}

// Requests are cancelled at random, and a server goes away under load.
func TestCancelled(t *testing.T) {
	t.Parallel()
	etcd, servers := newLease(t, 2)
	extra := startServer(t, etcd.Endpoints()[0])
	var gone atomic.Bool
	time.AfterFunc(time.Second, func() { gone.Store(true); extra.Destroy() })
	pick := func() *Server {
		if i := rand.IntN(3); i < 2 || gone.Load() {
			return servers[i%2]
		}
		return extra
	}
	request := func() (context.Context, context.CancelFunc) {
		if rand.IntN(2) == 0 {
			return ctx, func() {}
		}
		return context.WithTimeout(ctx, rand.N(12*time.Millisecond))
	}
	var c churn
	c.run(t, 24, 60, pick, request, false)
	st, revisions := replay(t, etcd)
	checkCreates(t, st)
	t.Logf("reported %d created, %d full, %d ambiguous; in fact created %d; left %d; invariants hold at %d revisions",
		c.created.Load(), c.full.Load(), c.ambiguous.Load(), len(st.made), len(st.instances), revisions)
	if int64(len(st.made)) < c.created.Load() {
		t.Errorf("a reported creation is missing")
	}
}

// TestHelper is the process that TestKilled kills.
func TestHelper(t *testing.T) {
	endpoint := os.Getenv("TXN_ENDPOINT")
	if endpoint == "" {
		t.Skip("runs as a child of TestKilled")
	}
	s := startServer(t, endpoint)
	fmt.Println("ready")
	var c churn
	for round := range 1000 {
		c.run(t, 16, 100, func() *Server { return s }, func() (context.Context, context.CancelFunc) {
			return requestContext(fmt.Sprintf("p%d-%d", os.Getpid(), round)), func() {}
		}, false)
	}
}

// API server processes are killed by SIGKILL under load.
func TestKilled(t *testing.T) {
	t.Parallel()
	etcd, servers := newLease(t, 1)
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelper$", "-test.v")
		cmd.Env = append(os.Environ(), "TXN_ENDPOINT="+etcd.Endpoints()[0])
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		for ready := ""; !strings.Contains(ready, "ready"); {
			n, err := out.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			ready += string(buf[:n])
		}
		go func() {
			for {
				if _, err := out.Read(buf); err != nil {
					return
				}
			}
		}()
		time.Sleep(500*time.Millisecond + rand.N(500*time.Millisecond))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		// Its remaining objects take slots until any server deletes them.
		list, err := servers[0].Instances.List(cluster, &metainternalversion.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list.(*InstanceList).Items {
			c := requestContext(i.Namespace)
			if err := remove(c, servers[0].Instances, i.Name); err != nil {
				t.Error(err)
			}
			if len(i.Finalizers) > 0 {
				if _, err := change(c, servers[0].Instances, i.Name, func(i *Instance) { i.Finalizers = nil }); err != nil {
					t.Error(err)
				}
			}
		}
	}
	st, revisions := replay(t, etcd)
	creates := checkCreates(t, st)
	t.Logf("created %d; left %d; invariants hold at %d revisions", creates, len(st.instances), revisions)
	if len(st.instances) != 0 || st.leases["lease"].Slots != ([Slots]Occupant{}) {
		t.Errorf("left: %v", st.leases["lease"])
	}
}
