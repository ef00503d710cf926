// Package v1alpha1 has the types of image.macrack.io/v1alpha1: images of macOS.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
// +k8s:conversion-gen=macrack.io/macrack/pkg/apis/image
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.macrack.image.v1alpha1
// +groupName=image.macrack.io
package v1alpha1
