// Package image has the internal types of image.macrack.io: images of macOS. Their meaning is
// documented in v1alpha1.
//
// +k8s:deepcopy-gen=package
// +groupName=image.macrack.io
package image
