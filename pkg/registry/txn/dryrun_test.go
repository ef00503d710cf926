package txn_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
