package txn_test

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"macrack.io/macrack/pkg/registry/txn"
)

func freezeLease(t testing.TB, s *Server) {
	t.Helper()
	if err := s.Backend.FreezeCache(Leases, "lease", &Lease{}); err != nil {
		t.Fatal(err)
	}
}

// A refusal that rests on what a watch cache had is not the request's.
func TestStaleCacheDoesNotRefuse(t *testing.T) {
	etcd, servers := newLease(t, 2)
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease"))
	settle(t, servers[1].Leases, mustGet(t, cluster, servers[0].Leases, "lease"))
	freezeLease(t, servers[1])
	mustCreate(t, ctx, servers[1].Instances, instance("b", "lease")) // has seen one slot taken
	for _, name := range []string{"a", "b"} {
		if err := remove(ctx, servers[0].Instances, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"c", "d"} {
		mustCreate(t, ctx, servers[1].Instances, instance(name, "lease"))
	}
	replay(t, etcd)
}

// Nor does a watch cache permit what etcd does not.
func TestStaleCacheDoesNotPermit(t *testing.T) {
	etcd, servers := newLease(t, 2)
	freezeLease(t, servers[1])
	for _, name := range []string{"a", "b"} {
		mustCreate(t, ctx, servers[0].Instances, instance(name, "lease"))
	}
	before := conflicts(t)
	if _, err := create(ctx, servers[1].Instances, instance("c", "lease")); !apierrors.IsForbidden(err) {
		t.Errorf("third instance: %v", err)
	}
	if got := conflicts(t) - before; got != 1 {
		t.Errorf("%v conflicts, want the one that told", got)
	}
	replay(t, etcd)
}

// An update that looks like none by what a watch cache had is looked at again.
func TestStaleCacheDoesNotSkip(t *testing.T) {
	endpoint, _ := startEtcd(t, false)
	other := startServer(t, endpoint)
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			lease := &Lease{}
			err := tx.Get(ctx, Leases, "", "lease", lease)
			if old != nil {
				new.(*Node).Labels = lease.Labels
			}
			return err
		},
	})
	settle(t, s.Leases, mustCreate(t, cluster, other.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}}))
	freezeLease(t, s)
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	if _, err := change(cluster, other.Leases, "lease", func(l *Lease) { l.Labels = map[string]string{"a": "b"} }); err != nil {
		t.Fatal(err)
	}
	if _, err := change(cluster, s.Nodes, "node", func(*Node) {}); err != nil {
		t.Fatal(err)
	}
	if n := mustGet(t, cluster, s.Nodes, "node").(*Node); n.Labels["a"] != "b" {
		t.Errorf("labels %v", n.Labels)
	}
}

// TestCacheIsNotShared checks that a planner gets its own copies of objects.
func TestCacheIsNotShared(t *testing.T) {
	endpoint, _ := startEtcd(t, false)
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error {
			lease := &Lease{}
			err := tx.Get(ctx, Leases, "", "lease", lease)
			lease.Labels["a"], lease.Slots[0].Name = "changed", "changed"
			return err
		},
	})
	settle(t, s.Leases, mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Labels: map[string]string{"a": "b"}}}))
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	cached, err := s.Leases.Get(cluster, "lease", &metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	if l := cached.(*Lease); l.Labels["a"] != "b" || l.Slots[0].Name != "" {
		t.Errorf("the cache now has %v", l)
	}
}

// With companions in the watch cache, a write is one round trip to etcd.
func TestOneRoundTrip(t *testing.T) {
	_, servers := newLease(t, 1)
	mustCreate(t, ctx, servers[0].Instances, instance("a", "lease")) // reads the head of the chain
	requests := func() float64 {
		return metric(t, "grpc_client_started_total", "grpc_method", "Txn") + metric(t, "grpc_client_started_total", "grpc_method", "Range")
	}
	before := requests()
	mustCreate(t, ctx, servers[0].Instances, instance("b", "lease"))
	if got := requests() - before; got != 1 {
		t.Errorf("%v requests", got)
	}
}
