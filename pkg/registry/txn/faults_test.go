//go:build faults

package txn_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/registry/txn"
)

// A witness takes note of errors instead of failing.
type witness struct {
	testing.TB
	errors atomic.Int64
}

func (w *witness) Errorf(format string, args ...any) {
	w.errors.Add(1)
	w.Logf(format, args...)
}

// Without the comparison of companions, the tests find what it prevents.
func TestFaultSkipCompare(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	servers := []*Server{startServer(t, endpoint), startServer(t, endpoint)}
	mustCreate(t, cluster, servers[0].Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	txn.Faults.SkipCompare = true
	defer func() { txn.Faults.SkipCompare = false }()
	w := &witness{TB: t}
	var c churn
	c.run(w, 16, 10, func() *Server { return servers[rand.IntN(2)] }, plainRequest, false)
	replay(w, etcd)
	if w.errors.Load() == 0 {
		t.Error("no invariant was broken")
	}
}

func TestFaultsAroundCommit(t *testing.T) {
	etcd, servers := newLease(t, 1)
	crash := errors.New("crash")
	defer func() { txn.Faults.BeforeCommit, txn.Faults.AfterCommit = nil, nil }()
	fail := func(_ context.Context, key string) error {
		if key != "/registry/toy.example/instances/default/a" {
			t.Errorf("key %s", key)
		}
		return crash
	}
	txn.Faults.BeforeCommit = fail
	before := revision(t, etcd)
	if _, err := create(ctx, servers[0].Instances, instance("a", "lease")); !errors.Is(err, crash) || revision(t, etcd) != before {
		t.Errorf("crash before the commit: %v", err)
	}
	txn.Faults.BeforeCommit, txn.Faults.AfterCommit = nil, fail
	if _, err := create(ctx, servers[0].Instances, instance("a", "lease")); !errors.Is(err, crash) || revision(t, etcd) != before+1 {
		t.Errorf("crash after the commit: %v", err)
	}
	replay(t, etcd)
}
