package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// RackConfigName is the name of the only RackConfig.
const RackConfigName = "default"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfig is the configuration of the fleet. It is a singleton with the name default. No setting
// changes the three rules: two virtual machines per Mac, one tenant per Mac, at least 24 hours.
type RackConfig struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   RackConfigSpec
	Status RackConfigStatus
}

// RackConfigSpec is the configuration of the fleet.
type RackConfigSpec struct {
	Audit            AuditConfig
	ImageCache       ImageCacheConfig
	Agent            AgentConfig
	Quarantine       QuarantineConfig
	DefaultClassName string
	GuestNetwork     GuestNetworkConfig
}

// AuditConfig is the configuration of the ledger.
type AuditConfig struct {
	Retention *scalar.Duration
}

// ImageCacheConfig is the configuration of the image cache on each Mac.
type ImageCacheConfig struct {
	MinimumFree *scalar.Quantity
}

// AgentConfig is the configuration of agent heartbeats.
type AgentConfig struct {
	HeartbeatInterval *scalar.Duration
	OfflineAfter      *scalar.Duration
}

// RebootPolicy is the policy for rebooting quarantined Macs.
type RebootPolicy string

const (
	// RebootNever leaves the reboot to an administrator.
	RebootNever RebootPolicy = "Never"
	// RebootWhenEmpty reboots a quarantined Mac that runs no virtual machine, if a reboot can
	// resolve the cause (KernelQuotaStuck or ScrubAsserted).
	RebootWhenEmpty RebootPolicy = "WhenEmpty"
)

// QuarantineConfig is the configuration of the handling of quarantined Macs.
type QuarantineConfig struct {
	Reboot RebootPolicy
	// MaximumRebootsPerDay is the limit of reboots of one Mac within 24 hours, from 1 to 24. If not
	// specified, it is 3.
	MaximumRebootsPerDay int32
}

// GuestNetworkConfig is the configuration of the network of isolated guests. They reach public IPv4
// addresses, and the private ones that this configuration and their InstanceClass allow. Nothing
// allows the Mac itself, link-local addresses, or addresses of cloud metadata.
type GuestNetworkConfig struct {
	AllowedCIDRs []string
	AllowedNames []string
}

// RackConfigStatus is the effect of the configuration on the fleet.
type RackConfigStatus struct {
	HeartbeatInterval *scalar.Duration
	ImagesAwaitingMac *int32
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfigList is a list of RackConfigs.
type RackConfigList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []RackConfig
}
