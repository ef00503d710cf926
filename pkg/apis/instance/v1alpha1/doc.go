// Package v1alpha1 has the types of instance.macrack.io/v1alpha1: macOS virtual machines and their
// sizes.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
// +k8s:conversion-gen=macrack.io/macrack/pkg/apis/instance
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.macrack.instance.v1alpha1
// +groupName=instance.macrack.io
package v1alpha1
