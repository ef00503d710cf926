package txn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"macrack.io/macrack/pkg/registry/txn"
)

// With planners that misbehave, requests fail and write nothing.
func TestMisuse(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	var plan txn.Planner
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error { return plan(ctx, tx, old, new) },
	})
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
		"main object read": func(ctx context.Context, tx *txn.Tx) error {
			if err := tx.Get(ctx, Nodes, "", "n", &Node{}); !apierrors.IsNotFound(err) {
				return err
			}
			return nil
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
	// A companion that exists is a conflict, which in the end is a 429, not "already exists" of the
	// main object.
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
	_, _, err := s.Nodes.GetCorruptObjDeleter().Delete(cluster, "n", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &yes})
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
	calls := 0
	set := func(s *Server, f func(*Lease)) {
		t.Helper()
		if _, err := change(cluster, s.Leases, "lease", f); err != nil {
			t.Error(err)
		}
	}
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Instances: Planners[Instances],
		Leases: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			switch calls++; calls {
			case 1: // The commit will find the lease changed, and the store will continue with the current one.
				set(other, func(l *Lease) { l.Labels = map[string]string{"a": "b"} })
			case 2: // The planner will find the node taken, but by the lease itself.
				set(other, func(l *Lease) { l.Node = "node" })
			}
			return Planners[Leases](ctx, tx, old, new)
		},
	})
	mustCreate(t, cluster, other.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	mustCreate(t, cluster, other.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	set(s, func(l *Lease) { l.Node = "node" })
	if calls < 3 {
		t.Errorf("planned %d times", calls)
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

// A planner can have companions deleted, too.
func TestCompanionDeleted(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			l := &Lease{}
			return errors.Join(tx.Get(ctx, Leases, "", "lease", l), tx.Delete(Leases, l))
		},
	})
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

// TestNameTaken checks that a name in use is reported before any other error.
func TestNameTaken(t *testing.T) {
	etcd, servers := newLease(t, 1)
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease"))
	mustCreate(t, ctx, servers[0].Instances, instance("b", "lease"))
	before := revision(t, etcd)
	if _, err := create(ctx, servers[0].Instances, instance("a", "lease")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("lease full, name taken: %v", err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
}

func TestTTL(t *testing.T) {
	etcd, servers := newLease(t, 1)
	before := revision(t, etcd)
	servers[0].Instances.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return 100, nil }
	if _, err := create(ctx, servers[0].Instances, instance("a", "lease")); err == nil || !strings.Contains(err.Error(), "TTL") {
		t.Errorf("planned object with a TTL: %v", err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
}

// TestOldStays checks that the planner does not see in-place changes of the update in old.
func TestOldStays(t *testing.T) {
	endpoint, _ := startEtcd(t, false)
	var seen []string
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Nodes: func(_ context.Context, _ *txn.Tx, old, new runtime.Object) error {
			if old != nil && new != nil {
				seen = append(seen, old.(*Node).Lease+" to "+new.(*Node).Lease)
			}
			return nil
		},
	})
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Lease: "a"})
	path, err := s.Nodes.KeyFunc(cluster, "node")
	if err != nil {
		t.Fatal(err)
	}
	err = s.Nodes.Storage.Storage.GuaranteedUpdate(cluster, path, &Node{}, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		in.(*Node).Lease = "b"
		return in, nil
	}), nil)
	if err != nil || len(seen) == 0 || seen[0] != "a to b" {
		t.Errorf("saw %q, %v", seen, err)
	}
}

// TestNestedWrite checks that an update function may itself write, even the object that is being
// updated.
func TestNestedWrite(t *testing.T) {
	etcd, servers := newLease(t, 2)
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease"))
	settle(t, servers[0].Instances, mustGet(t, ctx, servers[0].Instances, "a"))
	asked := 0
	if _, err := change(ctx, servers[0].Instances, "a", func(i *Instance) {
		i.Note = "x"
		switch asked++; asked {
		case 1: // so that the commit fails, with the lock taken
			if _, err := change(ctx, servers[1].Instances, "a", func(i *Instance) { i.Labels = map[string]string{"a": "b"} }); err != nil {
				t.Error(err)
			}
		case 2:
			if err := servers[0].Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return record(ctx, tx, "update", "lease", i) }); err != nil {
				t.Error(err)
			}
		}
	}); err != nil || asked < 2 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	replay(t, etcd)
}
