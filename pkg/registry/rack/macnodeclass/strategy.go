// Package macnodeclass stores MacNodeClasses.
package macnodeclass

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Strategy is the strategy for creating and updating MacNodeClasses.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of MacNodeClasses.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is false: a MacNodeClass is cluster-scoped.
func (Strategy) NamespaceScoped() bool { return false }

// GetResetFields returns the status: clients write it only through the subresource.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ResetStatus(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForCreate drops the status.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	macNodeClass := obj.(*rack.MacNodeClass)
	genericstrategy.Restore(&macNodeClass.ObjectMeta)
	macNodeClass.Generation = 1
	macNodeClass.Status = rack.MacNodeClassStatus{}
}

// PrepareForUpdate keeps the status, and increments the generation if the spec changes.
func (Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacNodeClass, oldMacNodeClass := obj.(*rack.MacNodeClass), old.(*rack.MacNodeClass)
	newMacNodeClass.Status = oldMacNodeClass.Status
	if !equality.Semantic.DeepEqual(newMacNodeClass.Spec, oldMacNodeClass.Spec) {
		newMacNodeClass.Generation = oldMacNodeClass.Generation + 1
	}
}

// Validate returns the errors in a new MacNodeClass.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeClass(obj.(*rack.MacNodeClass))
}

// ValidateUpdate returns the errors in a change of a MacNodeClass.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeClassUpdate(obj.(*rack.MacNodeClass), old.(*rack.MacNodeClass))
}

// StatusStrategy is the strategy for updating the status of MacNodeClasses.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields returns all fields but the status.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ServerFields[rack.MacNodeClassStatus]{}.ResetFields(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForUpdate keeps all fields but the status.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacNodeClass, oldMacNodeClass := obj.(*rack.MacNodeClass), old.(*rack.MacNodeClass)
	genericstrategy.KeepMetadata(&newMacNodeClass.ObjectMeta, &oldMacNodeClass.ObjectMeta)
	newMacNodeClass.Spec = oldMacNodeClass.Spec
}

// ValidateUpdate returns the errors in a change of a MacNodeClass's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacNodeClassStatusUpdate(obj.(*rack.MacNodeClass), old.(*rack.MacNodeClass))
}

// SelectableFields returns the fields that field selectors of MacNodeClasses can use.
func SelectableFields(macNodeClass *rack.MacNodeClass) fields.Set {
	return generic.ObjectMetaFieldsSet(&macNodeClass.ObjectMeta, false)
}

// GetAttrs returns the labels of a MacNodeClass and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
