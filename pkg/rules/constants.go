// Package rules has the constants and the decisions of the three rules that Apple's licence sets for
// rented Macs: two virtual machines on a Mac, one tenant, 24 hours at least. Every part of the system asks
// here, so that each rule is written once. The package does no I/O and reads no clock; nothing configures it.
package rules

import "time"

const (
	// MaxVMsPerMac is how many macOS virtual machines may run on one Mac at a time (rule 1).
	MaxVMsPerMac = 2

	// MinimumLeaseDuration is the least time for which a Mac is a tenant's, from the moment of binding (rule 3).
	MinimumLeaseDuration = 24 * time.Hour

	// MaxLeaseDuration bounds what a tenant can bind itself to by mistake: three years.
	MaxLeaseDuration = 3 * 365 * 24 * time.Hour

	// MinimumAuditRetention is the least time for which records are kept.
	MinimumAuditRetention = 90 * 24 * time.Hour

	// MaxAuditRetention bounds the retention of records: twenty years.
	MaxAuditRetention = 20 * 365 * 24 * time.Hour

	// MinimumMissedHeartbeats is how many heartbeats a Mac must miss at least before it counts as offline.
	MinimumMissedHeartbeats = 3

	// DefaultStopGrace is how long a guest may take to shut down if nobody says otherwise.
	DefaultStopGrace = 30 * time.Second

	// MaxStopGrace is how long a guest may take to shut down at most.
	MaxStopGrace = 10 * time.Minute
)

const (
	// ResourceMacOSVM is the resource of which a Node has MaxVMsPerMac and a placeholder pod asks for one.
	ResourceMacOSVM = "macrack.io/macos-vm"

	// FinalizerFloor keeps a lease until its Mac is released.
	FinalizerFloor = "macrack.io/floor"

	// FinalizerVM keeps an instance until its virtual machine has stopped.
	FinalizerVM = "macrack.io/vm"

	// TaintUnleased is the key of the taint of a Mac that belongs to nobody.
	TaintUnleased = "macrack.io/unleased"

	// TaintTenant is the key of the taint of a Mac that belongs to a tenant; its value is the tenant's namespace.
	TaintTenant = "macrack.io/tenant"

	// NamespaceImages is the namespace of the provider's Secrets with which Macs fetch images.
	NamespaceImages = "macrack-images"
	// LabelInstance is the label by which a placeholder pod names its instance.
	LabelInstance = "macrack.io/instance"

	// AnnotationInstanceUID is the annotation by which a placeholder pod names its instance's UID.
	AnnotationInstanceUID = "macrack.io/instance-uid"

	// AnnotationMaintenance is the annotation of a placeholder pod whose Mac is in maintenance: its pod may be deleted.
	AnnotationMaintenance = "macrack.io/maintenance"
)
