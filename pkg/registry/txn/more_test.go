package txn_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"macrack.io/macrack/pkg/registry/txn"
)

// newLease starts servers on one etcd, with a free lease.
func newLease(t testing.TB, n int) (*clientv3.Client, []*Server) {
	endpoint, etcd := startEtcd(t, false)
	var servers []*Server
	for range n {
		servers = append(servers, startServer(t, endpoint))
	}
	lease := mustCreate(t, cluster, servers[0].Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	for _, s := range servers {
		settle(t, s.Leases, lease)
	}
	return etcd, servers
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
	etcd, servers := newLease(t, 2)
	extra := startServer(t, etcd.Endpoints()[0])
	var gone atomic.Bool
	time.AfterFunc(2*time.Second, func() { gone.Store(true); extra.Destroy() })
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
	c.run(t, 24, 300, pick, request, false)
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
	etcd, servers := newLease(t, 1)
	for range 6 {
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
		time.Sleep(time.Second + rand.N(time.Second))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		// What it left takes up slots until it is deleted, by any server.
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

func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
	}
	return watch.Event{}
}

func leaseOf(e watch.Event) *Lease {
	obj := e.Object
	if c, ok := obj.(runtime.CacheableObject); ok {
		obj = c.GetObject()
	}
	return obj.(*Lease)
}

func TestWatchCaches(t *testing.T) {
	etcd, servers := newLease(t, 2)
	lease, err := servers[0].Leases.Get(cluster, "lease", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var watches []watch.Interface
	for _, s := range servers {
		w, err := s.Leases.Watch(cluster, &metainternalversion.ListOptions{ResourceVersion: rv(lease)})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	made := mustCreate(t, ctx, servers[0].Instances, instance("a", "lease")).(*Instance)
	check := func(what string, l *Lease, want string) {
		t.Helper()
		if l.Slots[0].UID != made.UID || l.ResourceVersion != want {
			t.Errorf("%s: lease at %s is %+v, want %s at %s", what, l.ResourceVersion, l.Slots, made.UID, want)
		}
	}
	for i, w := range watches {
		e := next(t, w)
		if e.Type != watch.Modified {
			t.Fatalf("event %v", e)
		}
		check(fmt.Sprintf("watch of server %d", i), leaseOf(e), made.ResourceVersion)
	}
	for i, s := range servers {
		// By now the cache has it, as its watch has told of it.
		cached, err := s.Leases.Get(cluster, "lease", &metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("cache of server %d", i), cached.(*Lease), made.ResourceVersion)
		// A read that asks for the revision of the create waits for the cache.
		list, err := s.Records.List(cluster, &metainternalversion.ListOptions{ResourceVersion: made.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		if err != nil {
			t.Fatal(err)
		}
		if items := list.(*RecordList).Items; len(items) != 1 || items[0].SubjectUID != made.UID || items[0].ResourceVersion != made.ResourceVersion || items[0].User != "alice" {
			t.Errorf("records of server %d: %+v", i, items)
		}
	}
	resp, err := etcd.Get(ctx, "/registry/toy.example/leases/lease")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(resp.Kvs[0].ModRevision); got != made.ResourceVersion {
		t.Errorf("etcd has %s", got)
	}
	// An update by the revision that the other server knows the companion by works.
	cached, _ := servers[1].Leases.Get(cluster, "lease", &metav1.GetOptions{ResourceVersion: "0"})
	l := cached.(*Lease).DeepCopyObject().(*Lease)
	l.Labels = map[string]string{"a": "b"}
	if _, _, err := servers[1].Leases.Update(cluster, "lease", rest.DefaultUpdatedObjectInfo(l), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if err := remove(ctx, servers[1].Instances, "a"); err != nil {
		t.Fatal(err)
	}
	for _, w := range watches {
		next(t, w) // the label
		if e := next(t, w); leaseOf(e).Slots != ([Slots]Occupant{}) {
			t.Errorf("after delete: %+v", e.Object)
		}
	}
	replay(t, etcd)
}

func revision(t testing.TB, etcd *clientv3.Client) int64 {
	resp, err := etcd.Get(context.Background(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

func TestDryRun(t *testing.T) {
	etcd, servers := newLease(t, 1)
	s := servers[0]
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	mustCreate(t, ctx, s.Instances, instance("a", "lease"))
	before := revision(t, etcd)
	if _, err := create(ctx, s.Instances, instance("b", "lease"), metav1.DryRunAll); err != nil {
		t.Error(err)
	}
	if _, err := change(ctx, s.Instances, "a", func(i *Instance) { i.Note = "x" }, metav1.DryRunAll); err != nil {
		t.Error(err)
	}
	if err := remove(ctx, s.Instances, "a", metav1.DryRunAll); err != nil {
		t.Error(err)
	}
	if _, err := change(cluster, s.Leases, "lease", func(l *Lease) { l.Node = "node" }, metav1.DryRunAll); err != nil {
		t.Error(err)
	}
	if err := s.Domain.Preflight(ctx, Instances, nil, instance("b", "lease")); err != nil {
		t.Error(err)
	}
	if err := s.Domain.Preflight(ctx, Instances, nil, instance("b", "none")); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
	mustCreate(t, ctx, s.Instances, instance("b", "lease"))
	if _, err := create(ctx, s.Instances, instance("c", "lease"), metav1.DryRunAll); err != nil {
		t.Error(err) // the storage is not asked, so the dry run does not know
	}
	if err := s.Domain.Preflight(ctx, Instances, nil, instance("c", "lease")); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
	replay(t, etcd)
}

func TestEncryption(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	block, _ := aes.NewCipher(bytes.Repeat([]byte{7}, 32))
	gcm, err := aestransformer.NewGCMTransformer(block)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(config(endpoint, gcm), Planners)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Destroy()
	mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	a := mustCreate(t, ctx, s.Instances, instance("a", "lease")).(*Instance)
	mustCreate(t, ctx, s.Instances, instance("b", "lease"))
	if err := remove(ctx, s.Instances, "b"); err != nil {
		t.Fatal(err)
	}
	resp, err := etcd.Get(ctx, "/registry/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if bytes.Contains(kv.Value, []byte("toy.example")) {
			t.Errorf("%s is in the clear", kv.Key)
		}
		if _, _, err := gcm.TransformFromStorage(ctx, kv.Value, aad(kv.Key)); err != nil {
			t.Errorf("%s: %v", kv.Key, err)
		}
		if _, _, err := gcm.TransformFromStorage(ctx, kv.Value, aad("/registry/elsewhere")); err == nil {
			t.Errorf("%s: not bound to its key", kv.Key)
		}
	}
	for _, version := range []string{"", "0"} {
		l, err := s.Leases.Get(cluster, "lease", &metav1.GetOptions{ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.(*Lease).Slots[0].UID; got != a.UID {
			t.Errorf("slot is %q", got)
		}
	}
}

type aad []byte

func (a aad) AuthenticatedData() []byte { return a }

// With planners that misbehave, requests fail and write nothing.
func TestMisuse(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	var plan txn.Planner
	s, err := NewServer(config(endpoint, nil), map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error { return plan(ctx, tx, old, new) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Destroy()
	lease := func(n string) *Lease { return &Lease{ObjectMeta: metav1.ObjectMeta{Name: n}} }
	for name, p := range map[string]func(context.Context, *txn.Tx) error{
		"two of a resource": func(ctx context.Context, tx *txn.Tx) error {
			return errors.Join(tx.Create(ctx, Leases, lease("x")), tx.Create(ctx, Leases, lease("y")))
		},
		"own resource": func(ctx context.Context, tx *txn.Tx) error {
			return tx.Create(ctx, Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		},
		"main object": func(ctx context.Context, tx *txn.Tx) error {
			return tx.Create(ctx, Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		},
		"path in a name": func(ctx context.Context, tx *txn.Tx) error {
			return tx.Create(ctx, Leases, lease("../nodes/n"))
		},
		"update of nothing": func(ctx context.Context, tx *txn.Tx) error { return tx.Update(ctx, Leases, lease("x")) },
		"unknown resource": func(ctx context.Context, tx *txn.Tx) error {
			return tx.Create(ctx, schema.GroupResource{Resource: "pods"}, lease("x"))
		},
	} {
		before := revision(t, etcd)
		plan = func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error { return p(ctx, tx) }
		_, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		t.Logf("%s: %v", name, err)
		if err == nil || revision(t, etcd) != before {
			t.Errorf("%s: %v, revision %d, was %d", name, err, revision(t, etcd), before)
		}
	}
	plan = func(context.Context, *txn.Tx, runtime.Object, runtime.Object) error { return nil }
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	plan = func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error {
		return tx.Create(ctx, Leases, lease("x"))
	}
	if _, err := change(cluster, s.Nodes, "n", func(*Node) {}); !apierrors.IsInternalError(err) {
		t.Errorf("companions without a change: %v", err)
	}
	// A companion that exists is a conflict, which in the end is a 429, not "already exists" of the main object.
	plan = func(context.Context, *txn.Tx, runtime.Object, runtime.Object) error { return nil }
	mustCreate(t, cluster, s.Leases, lease("x"))
	plan = func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error {
		return tx.Create(ctx, Leases, lease("x"))
	}
	if _, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("companion exists: %v", err)
	}
	// The main object exists: the stock error, before any companion's.
	if _, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("main object exists: %v", err)
	}
	// An undecodable object cannot be deleted past its planner.
	if _, err := etcd.Put(ctx, "/registry/toy.example/nodes/n", "junk"); err != nil {
		t.Fatal(err)
	}
	yes := true
	_, _, err = s.Nodes.GetCorruptObjDeleter().Delete(cluster, "n", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &yes})
	if !apierrors.IsMethodNotSupported(err) {
		t.Errorf("unsafe delete: %v", err)
	}
	// Too many operations.
	plan = func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error {
		for i := range 130 {
			if err := tx.Get(ctx, Leases, "", fmt.Sprint("l", i), &Lease{}); !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	}
	if _, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "o"}}); err == nil || !strings.Contains(err.Error(), "128 keys") {
		t.Errorf("too many operations: %v", err)
	}
}

// Writes of the main object come between its being read and the planner's reads.
func TestMainChangesWhilePlanned(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	other := startServer(t, endpoint)
	calls, before := 0, conflicts(t)
	set := func(s *Server, f func(*Lease)) {
		t.Helper()
		if _, err := change(cluster, s.Leases, "lease", f); err != nil {
			t.Error(err)
		}
	}
	s, err := NewServer(config(endpoint, nil), map[schema.GroupResource]txn.Planner{
		Instances: Planners[Instances],
		Leases: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			switch calls++; calls {
			case 1: // The commit will find the lease changed, and the store go on with the current one.
				set(other, func(l *Lease) { l.Labels = map[string]string{"a": "b"} })
			case 2: // The planner will find the node taken, but by the lease itself.
				set(other, func(l *Lease) { l.Node = "node" })
			}
			return Planners[Leases](ctx, tx, old, new)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Destroy()
	mustCreate(t, cluster, other.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	mustCreate(t, cluster, other.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	set(s, func(l *Lease) { l.Node = "node" })
	if calls < 3 || conflicts(t)-before != 1 {
		t.Errorf("planned %d times, from the start %v times", calls, conflicts(t)-before)
	}
	if st, _ := replay(t, etcd); st.leases["lease"].Node != "node" {
		t.Error("not bound")
	}
}

func TestDeleteCollection(t *testing.T) {
	etcd, servers := newLease(t, 2)
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease"))
	mustCreate(t, ctx, servers[0].Instances, instance("b", "lease"))
	if _, err := servers[1].Instances.DeleteCollection(ctx, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{}); err != nil {
		t.Error(err)
	}
	if st, _ := replay(t, etcd); len(st.instances) != 0 || checkCreates(t, st) != 2 {
		t.Errorf("left %v", st.instances)
	}
}

// generateName has create run again, with a new name, when the name is taken.
func TestGenerateName(t *testing.T) {
	etcd, servers := newLease(t, 1)
	i := instance("", "lease")
	i.GenerateName = "gen-"
	got := mustCreate(t, ctx, servers[0].Instances, i).(*Instance)
	if st, _ := replay(t, etcd); checkCreates(t, st) != 1 || st.leases["lease"].Slots[0].Name != got.Name {
		t.Errorf("slots %v of %s", st.leases["lease"].Slots, got.Name)
	}
}

func TestCompaction(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	c := config(endpoint, nil)
	c.CompactionInterval = 100 * time.Millisecond
	s, err := NewServer(c, Planners)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Destroy()
	mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	for range 100 {
		mustCreate(t, ctx, s.Instances, instance("a", "lease"))
		if err := remove(ctx, s.Instances, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := etcd.Get(ctx, "x", clientv3.WithRev(2)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("not compacted: %v", err)
	}
	t.Logf("storage knows of compaction at %d", s.Instances.Storage.Storage.CompactRevision())
}

// Why a transaction writes at most one object of a resource: a watch that
// breaks off between two events of one revision cannot be resumed.
func TestTwoOfAResource(t *testing.T) {
	etcd, servers := newLease(t, 1)
	put := func(name string) clientv3.Op {
		data, err := runtime.Encode(Codec, &Lease{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil {
			t.Fatal(err)
		}
		return clientv3.OpPut("/registry/toy.example/leases/"+name, string(data))
	}
	if _, err := etcd.Txn(ctx).Then(put("x"), put("y")).Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Txn(ctx).Then(put("z")).Commit(); err != nil {
		t.Fatal(err)
	}
	w, err := servers[0].Leases.Watch(cluster, &metainternalversion.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	next(t, w) // the lease
	x := leaseOf(next(t, w))
	w.Stop()
	w, err = servers[0].Leases.Watch(cluster, &metainternalversion.ListOptions{ResourceVersion: x.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if z := leaseOf(next(t, w)); x.Name != "x" || z.Name != "z" {
		t.Errorf("saw %s, then %s", x.Name, z.Name)
	}
}

// A planner can have companions deleted, too.
func TestCompanionDeleted(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	s, err := NewServer(config(endpoint, nil), map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			l := &Lease{}
			return errors.Join(tx.Get(ctx, Leases, "", "lease", l), tx.Delete(Leases, l))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Destroy()
	lease := mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	w, err := s.Leases.Watch(cluster, &metainternalversion.ListOptions{ResourceVersion: rv(lease)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	node := mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	if e := next(t, w); e.Type != watch.Deleted || leaseOf(e).ResourceVersion != rv(node) {
		t.Errorf("event %+v, want a deletion at %s", e, rv(node))
	}
	if resp, err := etcd.Get(ctx, "/registry/toy.example/leases/lease"); err != nil || len(resp.Kvs) != 0 {
		t.Errorf("lease: %v, %v", resp, err)
	}
}
