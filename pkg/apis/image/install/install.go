// Package install adds the internal and versioned types of image.macrack.io to a scheme.
package install

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/image/v1alpha1"
)

// Install adds the types to scheme, and prefers v1alpha1.
func Install(scheme *runtime.Scheme) {
	utilruntime.Must(image.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(v1alpha1.SchemeGroupVersion))
}
