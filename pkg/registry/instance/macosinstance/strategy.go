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
	"macrack.io/macrack/pkg/registry/genericstrategy"
	"macrack.io/macrack/pkg/rules"
)

// Strategy is the strategy for creating and updating MacOSInstances.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of MacOSInstances.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is true: a MacOSInstance is namespaced.
func (Strategy) NamespaceScoped() bool { return true }

// GetResetFields returns the status: clients write it only through the subresource.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ResetStatus(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForCreate drops the status, and adds the finalizer that keeps the instance until its
// virtual machine has stopped.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	macOSInstance := obj.(*instance.MacOSInstance)
	macOSInstance.Generation = 1
	macOSInstance.Status = instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending}
	genericstrategy.Restore(&macOSInstance.ObjectMeta, rules.FinalizerVM)
	macOSInstance.Finalizers = append(macOSInstance.Finalizers, rules.FinalizerVM)
}

// PrepareForUpdate keeps the status, and the finalizer until the instance has ended. The spec never
// changes.
func (Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	newMacOSInstance, oldMacOSInstance := obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance)
	newMacOSInstance.Status = oldMacOSInstance.Status
	if !rules.InstanceEnded(oldMacOSInstance.Status.Phase) {
		genericstrategy.KeepFinalizer(ctx, &newMacOSInstance.ObjectMeta, &oldMacOSInstance.ObjectMeta, rules.FinalizerVM)
	}
}

// Validate returns the errors in a new MacOSInstance.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacOSInstance(obj.(*instance.MacOSInstance))
}

// ValidateUpdate returns the errors in a change of a MacOSInstance.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacOSInstanceUpdate(obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance))
}

// serverFields are the fields of the status that only the server sets.
var serverFields = genericstrategy.NewServerFields[instance.MacOSInstanceStatus](
	"nodeName",
	"serialNumber",
	"stopRequest",
	"namespaceUID",
	"startGrantedAt",
	"stoppedAt",
)

// StatusStrategy is the strategy for updating the status of MacOSInstances.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields returns all fields but the status, and the fields of the status that only the
// server sets.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return serverFields.ResetFields(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForUpdate keeps all fields but the status, and the fields of the status that only the
// server sets. Data from the guest is untrusted. It is made to fit the limits, because otherwise a
// guest could prevent its agent from reporting its virtual machine.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacOSInstance, oldMacOSInstance := obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance)
	genericstrategy.KeepMetadata(&newMacOSInstance.ObjectMeta, &oldMacOSInstance.ObjectMeta)
	newMacOSInstance.Spec = oldMacOSInstance.Spec
	serverFields.Keep(&newMacOSInstance.Status, &oldMacOSInstance.Status)
	fitReport(&newMacOSInstance.Status)
}

func fitReport(status *instance.MacOSInstanceStatus) {
	status.Message = genericstrategy.Cut(status.Message, validation.MaxMessage)
	conditions.Fit(status.Conditions)
	if status.Startup != nil {
		status.Startup.Output = genericstrategy.CutEnd(status.Startup.Output, validation.MaxStartupOutput)
	}
	if status.IPAddress != nil && !validation.IsHostAddress(status.IPAddress.Value) {
		status.IPAddress = nil
	}
}

// ValidateUpdate returns the errors in a change of a MacOSInstance's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacOSInstanceStatusUpdate(obj.(*instance.MacOSInstance), old.(*instance.MacOSInstance))
}

// SelectableFields returns the fields that field selectors of MacOSInstances can use.
func SelectableFields(macOSInstance *instance.MacOSInstance) fields.Set {
	set := generic.ObjectMetaFieldsSet(&macOSInstance.ObjectMeta, true)
	set["spec.leaseName"] = macOSInstance.Spec.LeaseName
	set["status.phase"] = string(macOSInstance.Status.Phase)
	set["status.nodeName"] = macOSInstance.Status.NodeName
	set["status.namespaceUID"] = string(macOSInstance.Status.NamespaceUID)
	return set
}

// GetAttrs returns the labels of a MacOSInstance and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
