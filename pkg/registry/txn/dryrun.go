package txn

import (
	"context"
	"errors"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
)

// Preflight plans a write without making it, and returns the error with which the planner would
// refuse it. old and new are those of a [Planner], with namespace and name, and are not changed. It
// is for dry runs, which do not reach the storage.
func (b *Backend) Preflight(ctx context.Context, gr schema.GroupResource, old, new runtime.Object) error {
	_, err := b.Planned(ctx, gr, old, new)
	return err
}

// Planned is Preflight and also returns the object that the write would store: new with the changes
// of the planner.
func (b *Backend) Planned(ctx context.Context, gr schema.GroupResource, old, new runtime.Object) (runtime.Object, error) {
	b.mu.RLock()
	r := b.resources[gr]
	b.mu.RUnlock()
	if r == nil || r.store.Load() == nil {
		return new, nil
	}
	s := r.store.Load()
	main := new
	var rev uint64
	if old != nil {
		main, old = old, old.DeepCopyObject()
		var err error
		if rev, err = versioner.ObjectResourceVersion(old); err != nil {
			return nil, err
		}
	}
	m, err := meta.Accessor(main)
	if err != nil {
		return nil, err
	}
	_, _, key, err := b.locate(gr, m.GetNamespace(), m.GetName())
	if err != nil {
		return nil, err
	}
	tx := &Tx{backend: b, client: s.client, main: r, mainKey: key, fresh: true}
	planned, err := s.plan(ctx, tx, rev, old, new)
	if conflict := (*conflictError)(nil); !errors.As(err, &conflict) {
		return planned, err
	}
	if old == nil {
		return nil, apierrors.NewAlreadyExists(gr, m.GetName())
	}
	return nil, apierrors.NewConflict(gr, m.GetName(), errors.New("it has changed since it was read"))
}

// DryRunAdmission returns the admission plugin that calls the planners for dry runs, so that a dry
// run is refused if the real request would be. It must be the last in the admission chain of the
// server.
func (b *Backend) DryRunAdmission() admission.ValidationInterface {
	return &dryRunAdmission{b}
}

type dryRunAdmission struct{ backend *Backend }

var _ admission.ValidationInterface = &dryRunAdmission{}

func (*dryRunAdmission) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update || operation == admission.Delete
}

// Validate is called in place of the storage. For a deletion that finalizers turn into an update,
// it plans that update.
func (p *dryRunAdmission) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !a.IsDryRun() {
		return nil
	}
	gr := a.GetResource().GroupResource()
	old, new := a.GetOldObject(), a.GetObject()
	switch a.GetOperation() {
	case admission.Create:
		old = nil
	case admission.Update:
		if genericregistry.ShouldDeleteDuringUpdate(ctx, "", new, old) {
			new = nil
		}
	case admission.Delete:
		var err error
		if new, err = deleted(old, a.GetOperationOptions()); err != nil {
			return err
		}
	}
	if !p.backend.stores(gr, old) || !p.backend.stores(gr, new) {
		return nil // the object of a subresource, such as an Eviction
	}
	return p.backend.Preflight(ctx, gr, old, new)
}

// stores reports whether obj, if any, is of the type in which a resource is stored.
func (b *Backend) stores(gr schema.GroupResource, obj runtime.Object) bool {
	b.mu.RLock()
	r := b.resources[gr]
	b.mu.RUnlock()
	return r != nil && (obj == nil || r.kind == reflect.TypeOf(obj))
}

// deleted returns the result of a deletion of obj: nil, or obj marked as deleted.
func deleted(obj runtime.Object, options runtime.Object) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	o, _ := options.(*metav1.DeleteOptions)
	waits := len(m.GetFinalizers()) > 0 || o != nil && o.PropagationPolicy != nil && *o.PropagationPolicy != metav1.DeletePropagationBackground
	if !waits {
		return nil, nil
	}
	obj = obj.DeepCopyObject()
	if m, err = meta.Accessor(obj); err == nil && m.GetDeletionTimestamp() == nil {
		now := metav1.NewTime(time.Now())
		m.SetDeletionTimestamp(&now)
	}
	return obj, err
}
