package txn_test

import (
	"bytes"
	"crypto/aes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"macrack.io/macrack/pkg/registry/txn"
)

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
		if strings.HasPrefix(string(kv.Key), "/registry/macrack.io/index/") {
			continue // is what it is
		}
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
	settle(t, s.Leases, mustGet(t, cluster, s.Leases, "lease"))
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

func TestOneClusterOnly(t *testing.T) {
	c := *storagebackend.NewDefaultConfig("/registry", Codec)
	c.Transport.ServerList = []string{"http://127.0.0.1:1"}
	elsewhere, aside := c, c
	elsewhere.Transport.ServerList = []string{"http://127.0.0.1:2"}
	aside.Prefix = "/other"
	for name, second := range map[string]storagebackend.Config{"other servers": elsewhere, "other prefix": aside} {
		delegate := &eachItsOwn{Leases: c, Nodes: second}
		b := txn.NewBackend(delegate, nil)
		if _, err := b.GetRESTOptions(Leases, &Lease{}); err != nil {
			t.Error(err)
		}
		if _, err := b.GetRESTOptions(Nodes, &Node{}); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	index := schema.GroupResource{Group: "macrack.io", Resource: "index"}
	if _, err := txn.NewBackend(&eachItsOwn{index: c}, nil).GetRESTOptions(index, nil); err == nil {
		t.Error("a resource among the index keys")
	}
}

type eachItsOwn map[schema.GroupResource]storagebackend.Config

func (e *eachItsOwn) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	return restOptions((*e)[gr]).GetRESTOptions(gr, example)
}

// TestWithoutWatchCache checks that records have no watch cache, and that no resource has one if
// all are turned off.
func TestWithoutWatchCache(t *testing.T) {
	endpoint, _ := startEtcd(t, false)
	s := startServer(t, endpoint)
	if !s.Backend.HasWatchCache(Leases) || s.Backend.HasWatchCache(Records) {
		t.Errorf("watch caches: leases %v, records %v", s.Backend.HasWatchCache(Leases), s.Backend.HasWatchCache(Records))
	}
	b := txn.NewBackend(undecorated{restOptions(config(endpoint, nil))}, Planners)
	opts, err := b.GetRESTOptions(Leases, &Lease{})
	if err != nil {
		t.Fatal(err)
	}
	opts.StorageConfig.Codec = Codec
	_, destroy, err := opts.Decorator(opts.StorageConfig, "/"+opts.ResourcePrefix, nil, func() runtime.Object { return &Lease{} }, func() runtime.Object { return &LeaseList{} }, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	if b.HasWatchCache(Leases) {
		t.Error("leases have a watch cache")
	}
	w, err := s.Records.Watch(cluster, &metainternalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	mustCreate(t, ctx, s.Instances, instance("a", "lease"))
	if e := next(t, w); e.Type != watch.Added || e.Object.(*Record).Subject != "a" {
		t.Errorf("event %v", e)
	}
}

type undecorated struct{ generic.RESTOptionsGetter }

func (u undecorated) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	opts, err := u.RESTOptionsGetter.GetRESTOptions(gr, example)
	opts.Decorator = generic.UndecoratedStorage
	return opts, err
}
