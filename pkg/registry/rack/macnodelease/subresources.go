package macnodelease

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/rules"
)

type (
	bindingKey struct{}
	releaseKey struct{}
)

// bindingFrom returns the binding of a request.
func bindingFrom(ctx context.Context) (*rack.MacNodeLeaseBinding, bool) {
	binding, ok := ctx.Value(bindingKey{}).(*rack.MacNodeLeaseBinding)
	return binding, ok
}

// releaseFrom returns the release of a request.
func releaseFrom(ctx context.Context) (*rack.MacNodeLeaseRelease, bool) {
	release, ok := ctx.Value(releaseKey{}).(*rack.MacNodeLeaseRelease)
	return release, ok
}

// BindingREST is the subresource binding, which binds a lease to a MacNode.
type BindingREST struct{ genericstore.Subresource }

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
	if err := genericstore.CheckName(&binding.ObjectMeta, name); err != nil {
		return nil, err
	}
	if errs := validation.ValidateMacNodeLeaseBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rack.Kind("MacNodeLeaseBinding"), name, metadata.Brief(errs))
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, bindingKey{}, binding)
	return binding, r.Update(ctx, &binding.ObjectMeta, func(runtime.Object) {}, options.DryRun)
}

// ReleaseREST is the subresource release, which releases the MacNode of a lease.
type ReleaseREST struct{ genericstore.Subresource }

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
	if err := genericstore.CheckName(&release.ObjectMeta, name); err != nil {
		return nil, err
	}
	if errs := validation.ValidateMacNodeLeaseRelease(release); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rack.Kind("MacNodeLeaseRelease"), name, metadata.Brief(errs))
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, releaseKey{}, release)
	return release, r.Update(ctx, &release.ObjectMeta, func(obj runtime.Object) {
		lease := obj.(*rack.MacNodeLease)
		lease.Finalizers = slices.DeleteFunc(lease.Finalizers, func(f string) bool { return f == rules.FinalizerFloor })
	}, options.DryRun)
}
