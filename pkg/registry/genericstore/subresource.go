package genericstore

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
)

// Subresource updates an object for a request to one of its subresources, such as a binding. The
// update passes the planner of the object, but not its strategy.
type Subresource struct {
	store    rejection.Store
	backend  *txn.Backend
	resource schema.GroupResource
}

var _ rest.SubresourceObjectMetaPreserver = Subresource{}

// NewSubresource returns a subresource of the objects in main.
func NewSubresource(main *REST, strategy Strategy, options Options) Subresource {
	store := *main.Store.Store
	store.UpdateStrategy = serverUpdate{strategy}
	store.ResetFieldsStrategy = nil
	s := Subresource{store: *main.Store, backend: options.Backend, resource: store.DefaultQualifiedResource}
	s.store.Store = &store
	return s
}

// serverUpdate is the strategy of updates by the server.
type serverUpdate struct{ Strategy }

func (serverUpdate) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

func (serverUpdate) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate is true: the UID of a body is a
// precondition.
func (Subresource) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Update updates the object for body, which is created as its subresource: the object with the name
// of body, and with its UID if set. A dry run is planned but not written.
func (s Subresource) Update(ctx context.Context, body *metav1.ObjectMeta, change func(runtime.Object), dryRun []string) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		obj := old.DeepCopyObject()
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		if body.UID != "" && body.UID != m.GetUID() {
			return nil, apierrors.NewConflict(s.resource, body.Name, fmt.Errorf("it has UID %s, not %s: another object has its name now", m.GetUID(), body.UID))
		}
		change(obj)
		return obj, nil
	})
	preflight := func(ctx context.Context, obj, old runtime.Object) error {
		if !dryrun.IsDryRun(dryRun) {
			return nil
		}
		if registry.ShouldDeleteDuringUpdate(ctx, "", obj, old) {
			obj = nil
		}
		return s.backend.Preflight(ctx, s.resource, old, obj)
	}
	_, _, err := s.store.Update(ctx, body.Name, info, rest.ValidateAllObjectFunc, preflight, false, &metav1.UpdateOptions{DryRun: dryRun})
	return err
}

// CheckName sets the name of a request body to the one in its path, and refuses a body with another
// name.
func CheckName(body *metav1.ObjectMeta, name string) error {
	if body.Name != "" && body.Name != name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name in the URL (%s)", body.Name, name))
	}
	body.Name = name
	return nil
}
