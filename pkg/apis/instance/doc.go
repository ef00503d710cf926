// Package instance has the internal types of instance.macrack.io: macOS virtual machines and their
// sizes. Their meaning is documented in v1alpha1.
//
// +k8s:deepcopy-gen=package
// +groupName=instance.macrack.io
package instance
