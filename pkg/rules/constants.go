// Package rules implements the three rules of Apple's licence for rented Macs: at most two virtual
// machines per Mac, one tenant per Mac, at least 24 hours per lease. All components call this
// package, so that each rule is written once. The package does no I/O, reads no clock and has no
// configuration.
package rules

import "time"

const (
	// MaxVMsPerMac is the maximum number of macOS virtual machines that run on one Mac at a time
	// (rule 1).
	MaxVMsPerMac = 2

	// MinimumLeaseDuration is the minimum time for which a lease keeps its Mac, starting at the
	// binding (rule 3).
	MinimumLeaseDuration = 24 * time.Hour

	// MaxLeaseDuration limits the cost of a typing error: three years.
	MaxLeaseDuration = 3 * 365 * 24 * time.Hour

	// MinimumAuditRetention is the minimum retention of records.
	MinimumAuditRetention = 90 * 24 * time.Hour

	// MaxAuditRetention is the maximum retention of records: twenty years.
	MaxAuditRetention = 20 * 365 * 24 * time.Hour

	// DefaultStopGrace is the default time that a guest has to shut down.
	DefaultStopGrace = 30 * time.Second

	// MaxStopGrace is the maximum time that a guest can have to shut down.
	MaxStopGrace = 10 * time.Minute
)

const (
	// ResourceMacOSVM is the extended resource of which a Node has MaxVMsPerMac and a placeholder
	// pod requests one.
	ResourceMacOSVM = "macrack.io/macos-vm"

	// FinalizerFloor keeps a lease until its Mac is released.
	FinalizerFloor = "macrack.io/floor"

	// FinalizerVM keeps an instance until its virtual machine has stopped.
	FinalizerVM = "macrack.io/vm"

	// TaintUnleased is the key of the taint of an unleased Mac.
	TaintUnleased = "macrack.io/unleased"

	// TaintTenant is the key of the taint of a leased Mac; its value is the namespace of the
	// tenant.
	TaintTenant = "macrack.io/tenant"

	// NamespaceImages is the namespace of the provider's image pull Secrets.
	NamespaceImages = "macrack-images"
	// LabelLease is the label of a placeholder pod, and of the PodDisruptionBudget of a lease, with
	// the name of the lease.
	LabelLease = "macrack.io/lease"

	// LabelInstance is the label of a placeholder pod with the name of its instance.
	LabelInstance = "macrack.io/instance"

	// AnnotationInstanceUID is the annotation of a placeholder pod with the UID of its instance.
	AnnotationInstanceUID = "macrack.io/instance-uid"

	// AnnotationMaintenance is the annotation of a placeholder pod whose Mac is in maintenance.
	// Such a pod may be deleted.
	AnnotationMaintenance = "macrack.io/maintenance"
)
