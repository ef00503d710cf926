// Package macosimage stores MacOSImages.
package macosimage

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/image/validation"
	"macrack.io/macrack/pkg/registry/conditions"
	"macrack.io/macrack/pkg/registry/genericstrategy"
)

// Strategy is the strategy for creating and updating MacOSImages.
type Strategy struct {
	genericstrategy.Base
}

// NewStrategy returns the strategy of MacOSImages.
func NewStrategy(typer runtime.ObjectTyper) Strategy {
	return Strategy{genericstrategy.NewBase(typer)}
}

// NamespaceScoped is false: a MacOSImage is cluster-scoped.
func (Strategy) NamespaceScoped() bool { return false }

// GetResetFields returns the status: clients write it only through the subresource.
func (Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ResetStatus(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForCreate drops the status: an image is Pending until it has been verified.
func (Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	macOSImage := obj.(*image.MacOSImage)
	genericstrategy.Restore(&macOSImage.ObjectMeta)
	macOSImage.Generation = 1
	macOSImage.Status = image.MacOSImageStatus{Phase: image.MacOSImagePending}
}

// PrepareForUpdate keeps the status, and increments the generation if the spec changes. A changed
// spec is verified again.
func (Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacOSImage, oldMacOSImage := obj.(*image.MacOSImage), old.(*image.MacOSImage)
	newMacOSImage.Status = oldMacOSImage.Status
	if !equality.Semantic.DeepEqual(newMacOSImage.Spec, oldMacOSImage.Spec) {
		newMacOSImage.Generation = oldMacOSImage.Generation + 1
		if oldMacOSImage.Status.Phase != image.MacOSImageReady {
			newMacOSImage.Status.Phase = image.MacOSImagePending
			newMacOSImage.Status.Message = ""
			newMacOSImage.Status.Digest = ""
		}
	}
}

// Validate returns the errors in a new MacOSImage.
func (Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateMacOSImage(obj.(*image.MacOSImage))
}

// ValidateUpdate returns the errors in a change of a MacOSImage.
func (Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacOSImageUpdate(obj.(*image.MacOSImage), old.(*image.MacOSImage))
}

// StatusStrategy is the strategy for updating the status of MacOSImages.
type StatusStrategy struct {
	Strategy
}

// NewStatusStrategy returns the strategy of the subresource status.
func NewStatusStrategy(strategy Strategy) StatusStrategy {
	return StatusStrategy{strategy}
}

// GetResetFields returns all fields but the status.
func (StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return genericstrategy.ServerFields[image.MacOSImageStatus]{}.ResetFields(v1alpha1.SchemeGroupVersion.String())
}

// PrepareForUpdate keeps all fields but the status. Texts are cut to the limits, because they
// contain messages of a registry.
func (StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	newMacOSImage, oldMacOSImage := obj.(*image.MacOSImage), old.(*image.MacOSImage)
	genericstrategy.KeepMetadata(&newMacOSImage.ObjectMeta, &oldMacOSImage.ObjectMeta)
	newMacOSImage.Spec = oldMacOSImage.Spec
	newMacOSImage.Status.Message = genericstrategy.Cut(newMacOSImage.Status.Message, validation.MaxMessage)
	conditions.Fit(newMacOSImage.Status.Conditions)
}

// ValidateUpdate returns the errors in a change of a MacOSImage's status.
func (StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateMacOSImageStatusUpdate(obj.(*image.MacOSImage), old.(*image.MacOSImage))
}

// SelectableFields returns the fields that field selectors of MacOSImages can use.
func SelectableFields(macOSImage *image.MacOSImage) fields.Set {
	set := generic.ObjectMetaFieldsSet(&macOSImage.ObjectMeta, false)
	set["status.phase"] = string(macOSImage.Status.Phase)
	return set
}

// GetAttrs returns the labels of a MacOSImage and the fields that field selectors can use.
var GetAttrs = genericstrategy.Attrs(SelectableFields)
