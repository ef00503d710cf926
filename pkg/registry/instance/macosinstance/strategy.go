// Package macosinstance stores MacOSInstances.
package macosinstance

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/registry/conditions"
	"macrack.io/macrack/pkg/registry/strategies"
	"macrack.io/macrack/pkg/rules"
)

// Strategy says what of a MacOSInstance a client may write.
type Strategy struct {
	strategies.Base
}

// NewStrategy returns the strategy of MacOSInstances.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{strategies.NewBase(typer)}
}

// NamespaceScoped is true: a MacOSInstance is in a namespace.
func (Strategy) NamespaceScoped() bool { return true }

// GetResetFields says that clients cannot write the status here.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategies.ResetFields(v1alpha1.SchemeGroupVersion.String(), strategies.Path("status"))
}

// PrepareForCreate drops the status, and keeps the object until its virtual machine has stopped.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	macOSInstance := obj.(*instance.MacOSInstance)
	macOSInstance.Generation = 1
	macOSInstance.Status = instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending}
	strategies.Restore(&macOSInstance.ObjectMeta, rules.FinalizerVM)
	macOSInstance.Finalizers = append(macOSInstance.Finalizers, rules.FinalizerVM)
}

// PrepareForUpdate keeps the status, and the finalizer until the instance has ended. The spec never changes.
func (Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	newMacOSInstance, oldMacOSInstance := obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance)
	newMacOSInstance.Status = oldMacOSInstance.Status
	if !rules.InstanceEnded(oldMacOSInstance.Status.Phase) {
		strategies.KeepFinalizer(ctx, &newMacOSInstance.ObjectMeta, &oldMacOSInstance.ObjectMeta, rules.FinalizerVM)
	}
}

// Validate says what is wrong with a new MacOSInstance.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacOSInstance(obj.(*instance.MacOSInstance))
}

// ValidateUpdate says what is wrong with a change of a MacOSInstance.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacOSInstanceUpdate(obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance))
}

// StatusStrategy says what of a MacOSInstance's status a client may write.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields says that clients cannot write anything but the status here, nor what the server keeps in it.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return strategies.ResetFields(v1alpha1.SchemeGroupVersion.String(),
		strategies.Path("metadata"),
		strategies.Path("spec"),
		strategies.Path("status", "nodeName"),
		strategies.Path("status", "serialNumber"),
		strategies.Path("status", "stopRequest"),
		strategies.Path("status", "namespaceUID"),
		strategies.Path("status", "startGrantedAt"),
	)
}

// PrepareForUpdate keeps everything but the status, and what the server keeps in it. What the guest says of
// itself may be anything, and is made to fit, or it could keep its agent from reporting that it runs.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacOSInstance, oldMacOSInstance := obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance)
	strategies.KeepMetadata(&newMacOSInstance.ObjectMeta, &oldMacOSInstance.ObjectMeta)
	newMacOSInstance.Spec = oldMacOSInstance.Spec
	newMacOSInstance.Status.NodeName = oldMacOSInstance.Status.NodeName
	newMacOSInstance.Status.SerialNumber = oldMacOSInstance.Status.SerialNumber
	newMacOSInstance.Status.StopRequest = oldMacOSInstance.Status.StopRequest
	newMacOSInstance.Status.NamespaceUID = oldMacOSInstance.Status.NamespaceUID
	newMacOSInstance.Status.StartGrantedAt = oldMacOSInstance.Status.StartGrantedAt
	fitReport(&newMacOSInstance.Status)
}

func fitReport(status *instance.MacOSInstanceStatus) {
	status.Message = strategies.Cut(status.Message, validation.MaxMessage)
	conditions.Fit(status.Conditions)
	if status.Startup != nil {
		status.Startup.Output = strategies.CutEnd(status.Startup.Output, validation.MaxStartupOutput)
	}
	if status.IPAddress != nil && !validation.IsHostAddress(status.IPAddress.Value) {
		status.IPAddress = nil
	}
}

// ValidateUpdate says what is wrong with a change of a MacOSInstance's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacOSInstanceStatusUpdate(obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance))
}

// SelectableFields returns the fields by which MacOSInstances can be selected.
func SelectableFields(macOSInstance *instance.MacOSInstance) fields.Set {
	set := generic.ObjectMetaFieldsSet(&macOSInstance.ObjectMeta, true)
	set["spec.leaseName"] = macOSInstance.Spec.LeaseName
	set["status.phase"] = string(macOSInstance.Status.Phase)
	set["status.nodeName"] = macOSInstance.Status.NodeName
	set["status.namespaceUID"] = string(macOSInstance.Status.NamespaceUID)
	return set
}

// GetAttrs returns the labels and the fields by which a MacOSInstance can be selected.
var GetAttrs = strategies.Attrs(SelectableFields)
