// Package v1alpha1 has the types of rack.macrack.io/v1alpha1: Macs, their classes, their leases,
// and the ledger.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
// +k8s:conversion-gen=macrack.io/macrack/pkg/apis/rack
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.macrack.rack.v1alpha1
// +groupName=rack.macrack.io
package v1alpha1
