// Package instanceclass stores InstanceClasses.
package instanceclass

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Strategy is the strategy for creating and updating InstanceClasses.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of InstanceClasses.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is false: an InstanceClass is cluster-scoped.
func (Strategy) NamespaceScoped() bool { return false }

// PrepareForCreate sets the only generation of the spec.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	instanceClass := obj.(*instance.InstanceClass)
	genericstrategy.Restore(&instanceClass.ObjectMeta)
	instanceClass.Generation = 1
}

// PrepareForUpdate does nothing: the spec never changes.
func (Strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// Validate returns the errors in a new InstanceClass.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateInstanceClass(obj.(*instance.InstanceClass))
}

// ValidateUpdate returns the errors in a change of an InstanceClass.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateInstanceClassUpdate(obj.(*instance.InstanceClass), old.(*instance.InstanceClass))
}

// SelectableFields returns the fields that field selectors of InstanceClasses can use.
func SelectableFields(instanceClass *instance.InstanceClass) fields.Set {
	return generic.ObjectMetaFieldsSet(&instanceClass.ObjectMeta, false)
}

// GetAttrs returns the labels of an InstanceClass and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
