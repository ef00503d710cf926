package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/image/v1alpha1"
)

// ValidateManifest returns the errors that the server would return for a new MacOSImage. Clients
// use it offline.
func ValidateManifest(external *v1alpha1.MacOSImage) field.ErrorList {
	internal := &image.MacOSImage{}
	if err := v1alpha1.Convert_v1alpha1_MacOSImage_To_image_MacOSImage(external, internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return ValidateMacOSImage(internal)
}
