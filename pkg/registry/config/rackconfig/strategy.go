// Package rackconfig stores RackConfigs.
package rackconfig

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/config/validation"
	"macrack.io/macrack/pkg/registry/strategies"
)

// Strategy says what of a RackConfig a client may write.
type Strategy struct {
	strategies.Base
}

// NewStrategy returns the strategy of RackConfigs.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{strategies.NewBase(typer)}
}

// NamespaceScoped is false: a RackConfig is in no namespace.
func (Strategy) NamespaceScoped() bool { return false }

// PrepareForCreate begins to count the generations of the spec.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	rackConfig := obj.(*config.RackConfig)
	strategies.Restore(&rackConfig.ObjectMeta)
	rackConfig.Generation = 1
}

// PrepareForUpdate counts the generations of the spec.
func (Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newRackConfig, oldRackConfig := obj.(*config.RackConfig), old.(*config.RackConfig)
	if !equality.Semantic.DeepEqual(newRackConfig.Spec, oldRackConfig.Spec) {
		newRackConfig.Generation = oldRackConfig.Generation + 1
	}
}

// Validate says what is wrong with a new RackConfig.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateRackConfig(obj.(*config.RackConfig))
}

// ValidateUpdate says what is wrong with a change of a RackConfig.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateRackConfigUpdate(obj.(*config.RackConfig), old.(*config.RackConfig))
}

// SelectableFields returns the fields by which RackConfigs can be selected.
func SelectableFields(rackConfig *config.RackConfig) fields.Set {
	return generic.ObjectMetaFieldsSet(&rackConfig.ObjectMeta, false)
}

// GetAttrs returns the labels and the fields by which a RackConfig can be selected.
var GetAttrs = strategies.Attrs(SelectableFields)
