// Package v1alpha1 has the types of config.macrack.io/v1alpha1: the configuration of the fleet.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
// +k8s:conversion-gen=macrack.io/macrack/pkg/apis/config
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.macrack.config.v1alpha1
// +groupName=config.macrack.io
package v1alpha1
