// Package rack has the internal types of rack.macrack.io: Macs, their classes, their leases, and
// the ledger. Their meaning is documented in v1alpha1.
//
// +k8s:deepcopy-gen=package
// +groupName=rack.macrack.io
package rack
