package macosinstance

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/registry/identity"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/stores"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
)

// StopREST asks instances to stop.
type StopREST struct {
	store  *rejection.Store
	domain *txn.Domain
	clock  clock.PassiveClock
}

var _ rest.NamedCreater = &StopREST{}

// NewStopREST returns the subresource stop of the instances in store.
func NewStopREST(typer runtime.ObjectTyper, store *stores.REST, domain *txn.Domain, clock clock.PassiveClock) *StopREST {
	inner := *store.Store.Store
	inner.UpdateStrategy = planned{NewStrategy(typer)}
	inner.ResetFieldsStrategy = nil
	return &StopREST{&rejection.Store{Store: &inner, Recorder: store.Recorder}, domain, clock}
}

// planned is the strategy of updates that the server itself makes.
type planned struct{ Strategy }

func (planned) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (planned) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// New returns an empty request.
func (*StopREST) New() runtime.Object { return &instance.MacOSInstanceStop{} }

// Destroy does nothing: the store is the instance's.
func (*StopREST) Destroy() {}

// NamespaceScoped is true.
func (*StopREST) NamespaceScoped() bool { return true }

// Create asks the instance to stop. It is no error if it has been asked before, or has ended.
func (r *StopREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	stop := obj.(*instance.MacOSInstanceStop)
	if stop.Name != "" && stop.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name in the URL (%s)", stop.Name, name))
	}
	stop.Name = name
	if errs := validation.ValidateMacOSInstanceStop(stop); len(errs) > 0 {
		return nil, apierrors.NewInvalid(instance.Kind("MacOSInstanceStop"), name, errs)
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	request := instance.StopRequest{
		At:                 metav1.NewTime(r.clock.Now()),
		By:                 identity.Username(ctx),
		Reason:             stop.Reason,
		GracePeriodSeconds: int64(rules.DefaultStopGrace.Seconds()),
	}
	if stop.GracePeriodSeconds != nil {
		request.GracePeriodSeconds = *stop.GracePeriodSeconds
	}
	if request.Reason == "" {
		request.Reason = "Asked"
	}
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		i := old.DeepCopyObject().(*instance.MacOSInstance)
		requestStop(i, request)
		return i, nil
	})
	preflight := func(ctx context.Context, obj, old runtime.Object) error {
		if !dryrun.IsDryRun(options.DryRun) {
			return nil
		}
		return r.domain.Preflight(ctx, Resource, old, obj)
	}
	_, _, err := r.store.Update(ctx, name, info, rest.ValidateAllObjectFunc, preflight, false, &metav1.UpdateOptions{DryRun: options.DryRun})
	return stop, err
}
