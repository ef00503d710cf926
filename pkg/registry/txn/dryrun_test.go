package txn_test

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/registry/txn"
)

func TestPreflight(t *testing.T) {
	etcd, servers := newLease(t, 1)
	s := servers[0]
	a := mustCreate(t, ctx, s.Instances, instance("a", "lease"))
	before := revision(t, etcd)
	b := instance("b", "lease")
	if err := s.Backend.Preflight(ctx, Instances, nil, b); err != nil {
		t.Error(err)
	}
	if b.Slot != 0 {
		t.Error("preflight has changed the object")
	}
	if err := s.Backend.Preflight(ctx, Instances, a, nil); err != nil {
		t.Error(err)
	}
	if err := s.Backend.Preflight(ctx, Instances, nil, instance("b", "none")); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if err := s.Backend.Preflight(cluster, Nodes, nil, &Node{}); err != nil {
		t.Errorf("no planner: %v", err)
	}
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}
	mustCreate(t, ctx, s.Instances, instance("b", "lease"))
	if err := s.Backend.Preflight(ctx, Instances, nil, instance("c", "lease")); !apierrors.IsForbidden(err) {
		t.Error(err)
	}
	b.Namespace = "default"
	if err := s.Backend.Preflight(ctx, Instances, nil, b); !apierrors.IsAlreadyExists(err) {
		t.Error(err)
	}
	if err := remove(ctx, s.Instances, "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Backend.Preflight(ctx, Instances, a, nil); !apierrors.IsConflict(err) {
		t.Errorf("deletion of what is gone: %v", err)
	}
}

// dryRun makes a request as the API server's handlers do, with the admission.
type dryRun struct {
	admit admission.Interface
	gr    schema.GroupResource
	kind  string
}

func (d *dryRun) attributes(op admission.Operation, name string, options runtime.Object, dry bool) admission.Attributes {
	return admission.NewAttributesRecord(nil, nil, GV.WithKind(d.kind), "default", name, d.gr.WithVersion("v1"), "", op, options, dry, &user.DefaultInfo{Name: "alice"})
}

func (d *dryRun) create(s *genericregistry.Store, obj runtime.Object, dry ...string) error {
	validate := rest.AdmissionToValidateObjectFunc(d.admit, d.attributes(admission.Create, "", &metav1.CreateOptions{}, len(dry) > 0), nil)
	_, err := s.Create(ctx, obj, validate, &metav1.CreateOptions{DryRun: dry})
	return err
}

func (d *dryRun) update(ctx context.Context, s *genericregistry.Store, obj runtime.Object, dry ...string) error {
	m, _ := meta.Accessor(obj)
	attrs := d.attributes(admission.Update, m.GetName(), &metav1.UpdateOptions{}, len(dry) > 0)
	_, _, err := s.Update(ctx, m.GetName(), rest.DefaultUpdatedObjectInfo(obj), rest.AdmissionToValidateObjectFunc(d.admit, attrs, nil), rest.AdmissionToValidateObjectUpdateFunc(d.admit, attrs, nil), false, &metav1.UpdateOptions{DryRun: dry})
	return err
}

func (d *dryRun) remove(ctx context.Context, s *genericregistry.Store, name string, dry ...string) error {
	options := &metav1.DeleteOptions{DryRun: dry}
	_, _, err := s.Delete(ctx, name, rest.AdmissionToValidateObjectDeleteFunc(d.admit, d.attributes(admission.Delete, name, options, len(dry) > 0), nil), options)
	return err
}

// With the admission, a dry run is refused as the run would be, and writes nothing.
func TestDryRun(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	var planned []string
	s := startPlanned(t, endpoint, map[schema.GroupResource]txn.Planner{
		Leases: Planners[Leases],
		Instances: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			verb := "update"
			switch {
			case old == nil:
				verb = "create"
			case new == nil:
				verb = "delete"
			case new.(*Instance).DeletionTimestamp != nil:
				verb = "mark"
			}
			planned = append(planned, verb)
			return Planners[Instances](ctx, tx, old, new)
		},
	})
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}})
	mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	if _, err := change(cluster, s.Leases, "other", func(l *Lease) { l.Node = "taken" }); err != nil {
		t.Fatal(err)
	}
	lease := mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}}).(*Lease)
	a := mustCreate(t, ctx, s.Instances, instance("a", "lease")).(*Instance)
	mustCreate(t, ctx, s.Instances, instance("held", "lease", "toy.example/hold"))
	instances := &dryRun{admit: s.Backend.DryRunAdmission(), gr: Instances, kind: "Instance"}
	leases := &dryRun{admit: s.Backend.DryRunAdmission(), gr: Leases, kind: "Lease"}

	planned = nil
	before := revision(t, etcd)
	expect := func(what string, err error, ok func(error) bool, verb string) {
		t.Helper()
		if (ok == nil && err != nil) || (ok != nil && !ok(err)) {
			t.Errorf("%s: %v", what, err)
		}
		if fmt.Sprint(planned) != "["+verb+"]" {
			t.Errorf("%s: planned as %v, want %s", what, planned, verb)
		}
		planned = nil
	}
	expect("create, lease full", instances.create(s.Instances, instance("b", "lease"), metav1.DryRunAll), apierrors.IsForbidden, "create")
	expect("create, exists", instances.create(s.Instances, instance("a", "lease"), metav1.DryRunAll), apierrors.IsAlreadyExists, "create")
	noted := a.DeepCopyObject().(*Instance)
	noted.Note = "x"
	expect("update", instances.update(ctx, s.Instances, noted, metav1.DryRunAll), nil, "update")
	moved := a.DeepCopyObject().(*Instance)
	moved.Lease = "other"
	expect("update, moved", instances.update(ctx, s.Instances, moved, metav1.DryRunAll), apierrors.IsForbidden, "update")
	expect("delete", instances.remove(ctx, s.Instances, "a", metav1.DryRunAll), nil, "delete")
	expect("delete, held", instances.remove(ctx, s.Instances, "held", metav1.DryRunAll), nil, "mark")
	bound := lease.DeepCopyObject().(*Lease)
	bound.Slots = mustGet(t, cluster, s.Leases, "lease").(*Lease).Slots
	bound.ResourceVersion = rv(mustGet(t, cluster, s.Leases, "lease"))
	bound.Node = "node"
	expect("bind", leases.update(cluster, s.Leases, bound, metav1.DryRunAll), nil, "")
	bound.Node = "taken"
	expect("bind, taken", leases.update(cluster, s.Leases, bound, metav1.DryRunAll), apierrors.IsConflict, "")
	expect("delete, in use", leases.remove(cluster, s.Leases, "lease", metav1.DryRunAll), apierrors.IsConflict, "")
	if after := revision(t, etcd); after != before {
		t.Errorf("revision %d, was %d", after, before)
	}

	// The last finalizer's removal deletes.
	if err := instances.remove(ctx, s.Instances, "held"); err != nil {
		t.Fatal(err)
	}
	planned = nil
	held := mustGet(t, ctx, s.Instances, "held").(*Instance)
	held.Finalizers = nil
	expect("finalized", instances.update(ctx, s.Instances, held, metav1.DryRunAll), nil, "delete")

	// Other requests are left to the storage, and other objects alone.
	if err := instances.update(ctx, s.Instances, noted); err != nil || fmt.Sprint(planned) != "[update]" {
		t.Errorf("planned %v, %v", planned, err)
	}
	planned = nil
	attrs := admission.NewAttributesRecord(&Node{}, nil, GV.WithKind("Node"), "default", "a", Instances.WithVersion("v1"), "restart", admission.Create, nil, true, nil)
	if err := s.Backend.DryRunAdmission().Validate(ctx, attrs, nil); err != nil || planned != nil {
		t.Errorf("planned %v, %v", planned, err)
	}
	replay(t, etcd)
}
