// Package scalar has the durations and quantities of the API. Both keep the text that a user wrote,
// so that an object reads back as it was applied: 1440m does not become 24h0m0s, and 8192Mi does
// not become 8Gi.
//
// Decoding accepts any text. Validation refuses a text that does not parse, and names the field.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.macrack.scalar
package scalar
