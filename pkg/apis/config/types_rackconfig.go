package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// RackConfigName is the name of the only RackConfig.
const RackConfigName = "default"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfig is the configuration of the fleet. There is one, named default. Nothing in it can change the
// three rules: two virtual machines on a Mac, one tenant, 24 hours.
type RackConfig struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec RackConfigSpec
}

// RackConfigSpec is the configuration of the fleet.
type RackConfigSpec struct {
	Audit            AuditConfig
	ImageCache       ImageCacheConfig
	Agent            AgentConfig
	Quarantine       QuarantineConfig
	DefaultClassName string
}

// AuditConfig configures the ledger.
type AuditConfig struct {
	Retention *scalar.Duration
}

// ImageCacheConfig configures the images on the Macs' disks.
type ImageCacheConfig struct {
	MinimumFree *scalar.Quantity
}

// AgentConfig configures how the Macs' agents are watched.
type AgentConfig struct {
	HeartbeatInterval *scalar.Duration
	OfflineAfter      *scalar.Duration
}

// RebootPolicy says when a Mac in quarantine is rebooted.
type RebootPolicy string

const (
	// RebootNever leaves the reboot to an administrator.
	RebootNever RebootPolicy = "Never"
	// RebootWhenEmpty reboots a Mac that runs no virtual machine.
	RebootWhenEmpty RebootPolicy = "WhenEmpty"
)

// QuarantineConfig configures what is done with Macs in quarantine.
type QuarantineConfig struct {
	Reboot RebootPolicy
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfigList is a list of RackConfigs.
type RackConfigList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []RackConfig
}
