package txn_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"

	"macrack.io/macrack/pkg/registry/txn"
)

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startEtcd runs an etcd for the test and returns its endpoint and a client.
func startEtcd(t testing.TB, fsync bool) (string, *clientv3.Client) {
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	_ = os.Chmod(cfg.Dir, 0o700)
	cfg.UnsafeNoFsync = !fsync
	loopback := func() []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", freePort(t))}}
	}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = loopback(), loopback()
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = cfg.ListenPeerUrls, cfg.ListenClientUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(60 * time.Second):
		t.Fatal("etcd is not ready")
	}
	endpoint := cfg.ListenClientUrls[0].String()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return endpoint, c
}

func config(endpoint string, transformer value.Transformer) storagebackend.Config {
	c := storagebackend.NewDefaultConfig("/registry", nil)
	c.Transport.ServerList = []string{endpoint}
	c.Transformer = transformer
	c.CompactionInterval = 0 // the tests look at all of the history
	return *c
}

func startServer(t testing.TB, endpoint string) *Server {
	return startPlanned(t, endpoint, Planners)
}

func startPlanned(t testing.TB, endpoint string, planners map[schema.GroupResource]txn.Planner) *Server {
	s, err := NewServer(config(endpoint, nil), planners)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Destroy)
	return s
}

func requestContext(namespace string) context.Context {
	return genericrequest.WithUser(genericrequest.WithNamespace(context.Background(), namespace), &user.DefaultInfo{Name: "alice"})
}

var (
	ctx     = requestContext("default")
	cluster = requestContext("")
)

func instance(name, lease string, finalizers ...string) *Instance {
	return &Instance{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}, Lease: lease}
}

func create(ctx context.Context, s *genericregistry.Store, obj runtime.Object, dryRun ...string) (runtime.Object, error) {
	return s.Create(ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun})
}

func mustCreate(t testing.TB, ctx context.Context, s *genericregistry.Store, obj runtime.Object) runtime.Object {
	t.Helper()
	out, err := create(ctx, s, obj)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustGet(t testing.TB, ctx context.Context, s *genericregistry.Store, name string) runtime.Object {
	t.Helper()
	out, err := s.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// change updates an object by changing the current one.
func change[T runtime.Object](ctx context.Context, s *genericregistry.Store, name string, f func(T), dryRun ...string) (runtime.Object, error) {
	out, _, err := s.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		obj := old.DeepCopyObject().(T)
		f(obj)
		return obj, nil
	}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	return out, err
}

func remove(ctx context.Context, s *genericregistry.Store, name string, dryRun ...string) error {
	_, _, err := s.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{DryRun: dryRun})
	return err
}

// settle waits until the watch cache of a store has an object.
func settle(t testing.TB, s *genericregistry.Store, obj runtime.Object) {
	t.Helper()
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	in := requestContext(m.GetNamespace())
	if _, err := s.Get(in, m.GetName(), &metav1.GetOptions{ResourceVersion: m.GetResourceVersion()}); err != nil {
		t.Fatal(err)
	}
}

func rv(obj runtime.Object) string {
	m, _ := meta.Accessor(obj)
	return m.GetResourceVersion()
}

// state is what is stored at one revision.
type state struct {
	instances map[types.UID]*Instance
	leases    map[string]*Lease
	nodes     map[string]*Node
	records   map[string]*Record
	made      map[types.UID]bool // all instances ever created
	chains    map[string]int
	index     map[string]string
}

// replay checks the invariants at every revision that etcd ever had, and
// returns the state at the end and the number of revisions.
func replay(t testing.TB, c *clientv3.Client) (state, int) {
	t.Helper()
	wctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	st := state{map[types.UID]*Instance{}, map[string]*Lease{}, map[string]*Node{}, map[string]*Record{}, map[types.UID]bool{}, map[string]int{}, map[string]string{}}
	var group []*clientv3.Event
	revisions := 0
	flush := func() {
		if len(group) > 0 {
			revisions++
			st.apply(t, group)
			group = nil
		}
	}
	last := int64(0)
	// Ask for the last revision with a write of our own.
	end, err := c.Put(context.Background(), "/registry/~end", "")
	if err != nil {
		t.Fatal(err)
	}
	for resp := range c.Watch(wctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithPrevKV()) {
		if resp.Err() != nil {
			t.Fatal(resp.Err())
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision != last {
				flush()
				last = e.Kv.ModRevision
			}
			if e.Kv.ModRevision >= end.Header.Revision {
				return st, revisions
			}
			group = append(group, e)
		}
	}
	t.Fatal("history cut short")
	return st, 0
}

func decode[T runtime.Object](t testing.TB, kv *mvccpb.KeyValue, into T) T {
	if err := runtime.DecodeInto(Codec, kv.Value, into); err != nil {
		t.Fatalf("%s: %v", kv.Key, err)
	}
	return into
}

func (st *state) apply(t testing.TB, events []*clientv3.Event) {
	rev := events[0].Kv.ModRevision
	expect := map[string]int{} // verb and UID of the records that this revision must have
	resources := map[string]int{}
	got := map[string]int{}
	for _, e := range events {
		kv := e.Kv
		if e.Type == mvccpb.Event_DELETE {
			kv = e.PrevKv
		}
		gone := e.Type == mvccpb.Event_DELETE
		if key, ok := strings.CutPrefix(string(kv.Key), "/registry/macrack.io/index/"); ok {
			st.index[key] = string(kv.Value)
			if gone {
				delete(st.index, key)
			}
			continue
		}
		resource := strings.Split(string(kv.Key), "/")[3]
		resources[resource]++
		switch resource {
		case "instances":
			i := decode(t, kv, &Instance{})
			if gone {
				delete(st.instances, i.UID)
				expect["delete "+string(i.UID)]++
			} else {
				if e.IsCreate() {
					if st.made[i.UID] {
						t.Errorf("rev %d: %s created twice", rev, i.UID)
					}
					st.made[i.UID] = true
					expect["create "+string(i.UID)]++
				}
				st.instances[i.UID] = i
			}
		case "leases":
			l := decode(t, kv, &Lease{})
			if old := st.leases[l.Name]; old != nil && old.Node != l.Node {
				if old.Node == "" {
					expect["bind "+string(l.UID)]++
				} else {
					expect["unbind "+string(l.UID)]++
				}
			}
			st.leases[l.Name] = l
			if gone {
				delete(st.leases, l.Name)
			}
		case "nodes":
			n := decode(t, kv, &Node{})
			st.nodes[n.Name] = n
		case "records":
			r := decode(t, kv, &Record{})
			if gone || !e.IsCreate() {
				t.Errorf("rev %d: record %s changed", rev, r.Name)
			}
			st.records[r.Name] = r
			st.chains[r.Lease]++
			if r.Sequence != st.chains[r.Lease] {
				t.Errorf("rev %d: record %d of %s, want %d", rev, r.Sequence, r.Lease, st.chains[r.Lease])
			}
			if r.Verb != "update" {
				got[r.Verb+" "+string(r.SubjectUID)]++
			}
			if r.User != "alice" {
				t.Errorf("rev %d: record by %q", rev, r.User)
			}
		}
	}
	for r, n := range resources {
		if n > 1 {
			t.Errorf("rev %d: %d events of %s", rev, n, r)
		}
	}
	if fmt.Sprint(expect) != fmt.Sprint(got) {
		t.Errorf("rev %d: records %v, want %v", rev, got, expect)
	}
	taken := 0
	for _, l := range st.leases {
		for slot, o := range l.Slots {
			if o == (Occupant{}) {
				continue
			}
			taken++
			if i := st.instances[o.UID]; i == nil || i.Lease != l.Name || i.Slot != slot || i.Name != o.Name {
				t.Errorf("rev %d: lease %s slot %d has %+v, which is %+v", rev, l.Name, slot, o, i)
			}
		}
		if l.Node != "" && (st.nodes[l.Node] == nil || st.nodes[l.Node].Lease != l.Name) {
			t.Errorf("rev %d: lease %s is on node %s, which does not know", rev, l.Name, l.Node)
		}
	}
	for _, n := range st.nodes {
		if n.Lease != "" && (st.leases[n.Lease] == nil || st.leases[n.Lease].Node != n.Name) {
			t.Errorf("rev %d: node %s has lease %s, which does not know", rev, n.Name, n.Lease)
		}
	}
	index := map[string]string{}
	for lease, n := range st.chains {
		index["chain/"+lease] = strconv.Itoa(n)
	}
	for _, i := range st.instances {
		if i.Machine != "" {
			index["machine/"+i.Machine] = string(i.UID)
		}
	}
	if !maps.Equal(index, st.index) {
		t.Errorf("rev %d: index keys %v, want %v", rev, st.index, index)
	}
	// With every slot's instance distinct and live, this leaves none without a slot.
	if taken != len(st.instances) {
		t.Errorf("rev %d: %d slots taken by %d instances", rev, taken, len(st.instances))
	}
}

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

func revision(t testing.TB, etcd *clientv3.Client) int64 {
	resp, err := etcd.Get(context.Background(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}
