package macosinstance

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/apis/rack"
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

// requestStop requests an instance to stop, unless it has ended. An instance that no agent has
// started is Stopped at once.
func requestStop(new *instance.MacOSInstance, request instance.StopRequest) {
	if rules.InstanceEnded(new.Status.Phase) || new.Status.StopRequest != nil {
		return
	}
	new.Status.StopRequest = &request
	if new.Status.Phase == instance.MacOSInstancePending && new.Status.PodName == "" {
		new.Status.Phase = instance.MacOSInstanceStopped
		new.Status.Message = "stopped before its virtual machine started"
		return
	}
	new.Status.Phase = instance.MacOSInstanceStopping
	new.Status.Message = stopMessage(new)
}

// stopMessage returns the message of a stopping instance: the user who requested it, and the state
// of the Mac if it is offline.
func stopMessage(i *instance.MacOSInstance) string {
	request := i.Status.StopRequest
	if request == nil {
		return ""
	}
	message := fmt.Sprintf("stop requested by %s (%s)", request.By, request.Reason)
	if mac := meta.FindStatusCondition(i.Status.Conditions, instance.MacOSInstanceMacReady); mac != nil && mac.Status == metav1.ConditionFalse && mac.Reason == rack.ReasonMacOffline {
		message += "; it stops when its Mac is online again: " + mac.Message
	}
	return message
}
