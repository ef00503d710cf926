// Package config has the internal types of config.macrack.io: the configuration of the fleet. Their
// meaning is documented in v1alpha1.
//
// +k8s:deepcopy-gen=package
// +groupName=config.macrack.io
package config
