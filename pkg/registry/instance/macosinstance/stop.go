package macosinstance

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

// StopREST is the subresource stop, which requests an instance to stop.
type StopREST struct {
	genericstore.Subresource
	clock clock.PassiveClock
}

var _ rest.NamedCreater = &StopREST{}

// New returns an empty request.
func (*StopREST) New() runtime.Object { return &instance.MacOSInstanceStop{} }

// Destroy does nothing: the store is the instance's.
func (*StopREST) Destroy() {}

// NamespaceScoped is true.
func (*StopREST) NamespaceScoped() bool { return true }

// Create requests the instance to stop. It succeeds even if the instance is already stopping or has
// ended.
func (r *StopREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	stop := obj.(*instance.MacOSInstanceStop)
	if err := genericstore.CheckName(&stop.ObjectMeta, name); err != nil {
		return nil, err
	}
	if errs := validation.ValidateMacOSInstanceStop(stop); len(errs) > 0 {
		return nil, apierrors.NewInvalid(instance.Kind("MacOSInstanceStop"), name, metadata.Brief(errs))
	}
	if err := validate(ctx, obj.DeepCopyObject()); err != nil {
		return nil, err
	}
	request := instance.StopRequest{
		At:                 metav1.NewTime(r.clock.Now()),
		By:                 requestuser.Username(ctx),
		Reason:             stop.Reason,
		GracePeriodSeconds: int64(rules.DefaultStopGrace.Seconds()),
	}
	if stop.GracePeriodSeconds != nil {
		request.GracePeriodSeconds = *stop.GracePeriodSeconds
	}
	if request.Reason == "" {
		request.Reason = "Asked"
	}
	return stop, r.Update(ctx, &stop.ObjectMeta, func(obj runtime.Object) {
		requestStop(obj.(*instance.MacOSInstance), request)
	}, options.DryRun)
}
