// Package apiserver assembles the API server: its scheme, its configuration and its API groups.
package apiserver

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	configinstall "macrack.io/macrack/pkg/apis/config/install"
	imageinstall "macrack.io/macrack/pkg/apis/image/install"
	instanceinstall "macrack.io/macrack/pkg/apis/instance/install"
	rackinstall "macrack.io/macrack/pkg/apis/rack/install"
)

var (
	// Scheme has the types of all groups.
	Scheme = runtime.NewScheme()
	// Codecs encodes and decodes the types.
	Codecs = serializer.NewCodecFactory(Scheme)
)

func init() {
	rackinstall.Install(Scheme)
	instanceinstall.Install(Scheme)
	imageinstall.Install(Scheme)
	configinstall.Install(Scheme)

	// The generic server serves its own types in the core group.
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(Scheme, v1)
	Scheme.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
}
