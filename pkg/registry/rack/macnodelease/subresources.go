package macnodelease

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

type (
	bindingKey struct{}
	releaseKey struct{}
)

// bindingFrom returns the binding that a request asks for.
func bindingFrom(ctx context.Context) (*rack.MacNodeLeaseBinding, bool) {
	binding, ok := ctx.Value(bindingKey{}).(*rack.MacNodeLeaseBinding)
	return binding, ok
}

// releaseFrom returns the release that a request asks for.
func releaseFrom(ctx context.Context) (*rack.MacNodeLeaseRelease, bool) {
	release, ok := ctx.Value(releaseKey{}).(*rack.MacNodeLeaseRelease)
	return release, ok
}

// subresource updates a lease for a request that is created as a subresource of it. The planner does the rest.
type subresource struct {
	store    *rejection.Store
	domain   *txn.Domain
	strategy Strategy
}

func newSubresource(store *rejection.Store, domain *txn.Domain, strategy Strategy) subresource {
	inner := *store.Store
	inner.UpdateStrategy = planned{strategy}
	inner.ResetFieldsStrategy = nil
	outer := *store
	outer.Store = &inner
	return subresource{&outer, domain, strategy}
}

// planned is the strategy of updates that only the planner makes.
type planned struct{ Strategy }

func (planned) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (planned) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

func (s subresource) update(ctx context.Context, name string, change func(*rack.MacNodeLease), dryRun []string) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		lease := old.DeepCopyObject().(*rack.MacNodeLease)
		change(lease)
		return lease, nil
	})
	validate := func(ctx context.Context, obj, old runtime.Object) error {
		if !dryrun.IsDryRun(dryRun) {
			return nil
		}
		if registry.ShouldDeleteDuringUpdate(ctx, "", obj, old) {
			obj = nil
		}
		return s.domain.Preflight(ctx, Resource, old, obj)
	}
	_, _, err := s.store.Update(ctx, name, info, rest.ValidateAllObjectFunc, validate, false, &metav1.UpdateOptions{DryRun: dryRun})
	return err
}

// checkName refuses a body whose name is not that of the lease in the path.
func checkName(body *metav1.ObjectMeta, name string) error {
	if body.Name != "" && body.Name != name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name in the URL (%s)", body.Name, name))
	}
	body.Name = name
	return nil
}

// BindingREST joins a lease and a MacNode.
type BindingREST struct{ subresource }

var _ rest.NamedCreater = &BindingREST{}

// New returns an empty binding.
func (*BindingREST) New() runtime.Object { return &rack.MacNodeLeaseBinding{} }

// Destroy does nothing: the store is the lease's.
func (*BindingREST) Destroy() {}

// NamespaceScoped is true.
func (*BindingREST) NamespaceScoped() bool { return true }

// Create binds the lease.
func (r *BindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	binding := obj.(*rack.MacNodeLeaseBinding)
	if err := checkName(&binding.ObjectMeta, name); err != nil {
		return nil, err
	}
	if errs := validation.ValidateMacNodeLeaseBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rack.Kind("MacNodeLeaseBinding"), name, errs)
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, bindingKey{}, binding)
	return binding, r.update(ctx, name, func(*rack.MacNodeLease) {}, options.DryRun)
}

// ReleaseREST parts a lease and its MacNode.
type ReleaseREST struct{ subresource }

var _ rest.NamedCreater = &ReleaseREST{}

// New returns an empty release.
func (*ReleaseREST) New() runtime.Object { return &rack.MacNodeLeaseRelease{} }

// Destroy does nothing: the store is the lease's.
func (*ReleaseREST) Destroy() {}

// NamespaceScoped is true.
func (*ReleaseREST) NamespaceScoped() bool { return true }

// Create releases the lease's Mac.
func (r *ReleaseREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	release := obj.(*rack.MacNodeLeaseRelease)
	if err := checkName(&release.ObjectMeta, name); err != nil {
		return nil, err
	}
	if errs := validation.ValidateMacNodeLeaseRelease(release); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rack.Kind("MacNodeLeaseRelease"), name, errs)
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, releaseKey{}, release)
	return release, r.update(ctx, name, func(lease *rack.MacNodeLease) {
		lease.Finalizers = slices.DeleteFunc(lease.Finalizers, func(f string) bool { return f == rules.FinalizerFloor })
	}, options.DryRun)
}

// cutTaint splits a taint that is written as key=value:effect.
func cutTaint(taint string) (key, value, effect string) {
	key, effect, _ = strings.Cut(taint, ":")
	key, value, _ = strings.Cut(key, "=")
	return key, value, effect
}

// hasRule says whether a message already begins with the rule that it is about.
func hasRule(message string) bool { return strings.HasPrefix(message, "rule ") }
