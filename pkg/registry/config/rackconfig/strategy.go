// Package rackconfig stores RackConfigs.
package rackconfig

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/apis/config/validation"
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Strategy is the strategy for creating and updating RackConfigs.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of RackConfigs.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is false: a RackConfig is cluster-scoped.
func (Strategy) NamespaceScoped() bool { return false }

// GetResetFields returns the status: clients write it only through the subresource.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ResetStatus(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForCreate drops the status and sets the first generation.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	rackConfig := obj.(*config.RackConfig)
	genericstrategy.Restore(&rackConfig.ObjectMeta)
	rackConfig.Generation = 1
	rackConfig.Status = config.RackConfigStatus{}
}

// PrepareForUpdate keeps the status, and increments the generation if the spec changes.
func (Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newRackConfig, oldRackConfig := obj.(*config.RackConfig), old.(*config.RackConfig)
	newRackConfig.Status = oldRackConfig.Status
	if !equality.Semantic.DeepEqual(newRackConfig.Spec, oldRackConfig.Spec) {
		newRackConfig.Generation = oldRackConfig.Generation + 1
	}
}

// Validate returns the errors in a new RackConfig.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateRackConfig(obj.(*config.RackConfig))
}

// ValidateUpdate returns the errors in a change of a RackConfig.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateRackConfigUpdate(obj.(*config.RackConfig), old.(*config.RackConfig))
}

// StatusStrategy is the strategy for updating the status of RackConfigs.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields returns all fields but the status.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ServerFields[config.RackConfigStatus]{}.ResetFields(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForUpdate keeps all fields but the status.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newRackConfig, oldRackConfig := obj.(*config.RackConfig), old.(*config.RackConfig)
	genericstrategy.KeepMetadata(&newRackConfig.ObjectMeta, &oldRackConfig.ObjectMeta)
	newRackConfig.Spec = oldRackConfig.Spec
}

// ValidateUpdate returns the errors in a change of a RackConfig's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateRackConfigStatusUpdate(obj.(*config.RackConfig), old.(*config.RackConfig))
}

// SelectableFields returns the fields that field selectors of RackConfigs can use.
func SelectableFields(rackConfig *config.RackConfig) fields.Set {
	return generic.ObjectMetaFieldsSet(&rackConfig.ObjectMeta, false)
}

// GetAttrs returns the labels of a RackConfig and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
