package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// RackConfigName is the name of the only RackConfig.
const RackConfigName = "default"

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfig is the configuration of the fleet. It is a singleton with the name default. No setting
// changes the three rules: two virtual machines per Mac, one tenant per Mac, at least 24 hours.
type RackConfig struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the configuration.
	// +optional
	Spec RackConfigSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`
	// status is the effect of the configuration on the fleet.
	// +optional
	Status RackConfigStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// RackConfigSpec is the configuration of the fleet.
type RackConfigSpec struct {
	// audit is the configuration of the ledger.
	// +optional
	Audit AuditConfig `json:"audit,omitempty" protobuf:"bytes,1,opt,name=audit"`
	// imageCache is the configuration of the image cache on each Mac.
	// +optional
	ImageCache ImageCacheConfig `json:"imageCache,omitempty" protobuf:"bytes,2,opt,name=imageCache"`
	// agent is the configuration of agent heartbeats.
	// +optional
	Agent AgentConfig `json:"agent,omitempty" protobuf:"bytes,3,opt,name=agent"`
	// quarantine is the configuration of the handling of quarantined Macs.
	// +optional
	Quarantine QuarantineConfig `json:"quarantine,omitempty" protobuf:"bytes,4,opt,name=quarantine"`
	// defaultClassName is the name of the MacNodeClass used by leases that do not specify
	// className.
	// +optional
	DefaultClassName string `json:"defaultClassName,omitempty" protobuf:"bytes,5,opt,name=defaultClassName"`
	// guestNetwork is the configuration of the network of isolated guests.
	// +optional
	GuestNetwork GuestNetworkConfig `json:"guestNetwork,omitempty" protobuf:"bytes,6,opt,name=guestNetwork"`
}

// AuditConfig is the configuration of the ledger.
type AuditConfig struct {
	// retention is the time for which audit records are kept. It is a duration such as 90d or
	// 2160h, with the units d (24 hours), h, m and s. Minimum: 90d. Defaults to 400d.
	// +optional
	Retention *scalar.Duration `json:"retention,omitempty" protobuf:"bytes,1,opt,name=retention"`
}

// ImageCacheConfig is the configuration of the image cache on each Mac.
type ImageCacheConfig struct {
	// minimumFree is the disk space in bytes that the agent keeps free on each Mac, such as 20Gi.
	// Defaults to 20Gi.
	// +optional
	MinimumFree *scalar.Quantity `json:"minimumFree,omitempty" protobuf:"bytes,1,opt,name=minimumFree"`
}

// AgentConfig is the configuration of agent heartbeats.
type AgentConfig struct {
	// heartbeatInterval is the interval at which an agent renews the Lease of its Node. It is a
	// duration such as 10s or 1m30s, with the units d, h, m and s, from 1s to 5m. Defaults to 10s.
	// A large fleet has a longer interval; see status.heartbeatInterval.
	// +optional
	HeartbeatInterval *scalar.Duration `json:"heartbeatInterval,omitempty" protobuf:"bytes,1,opt,name=heartbeatInterval"`
	// offlineAfter is the time without a heartbeat after which a Mac is Offline. It is a duration
	// such as 60s or 2m, with the units d, h, m and s. Minimum: three heartbeat intervals. Defaults
	// to 1m.
	// +optional
	OfflineAfter *scalar.Duration `json:"offlineAfter,omitempty" protobuf:"bytes,2,opt,name=offlineAfter"`
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
	// reboot is the policy for rebooting quarantined Macs: Never or WhenEmpty. Defaults to Never.
	// +optional
	Reboot RebootPolicy `json:"reboot,omitempty" protobuf:"bytes,1,opt,name=reboot,casttype=RebootPolicy"`
	// maximumRebootsPerDay is the limit of reboots of one Mac within 24 hours, from 1 to 24. If not
	// specified, it is 3.
	// +optional
	MaximumRebootsPerDay int32 `json:"maximumRebootsPerDay,omitempty" protobuf:"varint,2,opt,name=maximumRebootsPerDay"`
}

// GuestNetworkConfig is the configuration of the network of isolated guests. They reach public IPv4
// addresses, and the private ones that this configuration and their InstanceClass allow. Nothing
// allows the Mac itself, link-local addresses, or addresses of cloud metadata.
type GuestNetworkConfig struct {
	// allowedCIDRs are the private IPv4 networks that guests may reach, such as 10.20.0.0/16. At
	// most 64.
	// +optional
	// +listType=atomic
	AllowedCIDRs []string `json:"allowedCIDRs,omitempty" protobuf:"bytes,1,rep,name=allowedCIDRs"`
	// allowedNames are the DNS names whose private addresses guests may reach, such as
	// git.example.com, or *.example.com for all names below it. An address is allowed for the time
	// to live of the DNS answer. At most 64.
	// +optional
	// +listType=atomic
	AllowedNames []string `json:"allowedNames,omitempty" protobuf:"bytes,2,rep,name=allowedNames"`
}

// RackConfigStatus is the effect of the configuration on the fleet.
type RackConfigStatus struct {
	// heartbeatInterval is the interval of agent heartbeats, if the size of the fleet requires a
	// longer one than spec.agent.heartbeatInterval. It is a duration of at most 20s and a third of
	// spec.agent.offlineAfter, with the units d, h, m and s.
	// +optional
	HeartbeatInterval *scalar.Duration `json:"heartbeatInterval,omitempty" protobuf:"bytes,1,opt,name=heartbeatInterval"`
	// imagesAwaitingMac is the number of images that only Macs can verify. Agents look for such
	// images unless it is 0.
	// +optional
	ImagesAwaitingMac *int32 `json:"imagesAwaitingMac,omitempty" protobuf:"varint,2,opt,name=imagesAwaitingMac"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfigList is a list of RackConfigs.
type RackConfigList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []RackConfig `json:"items" protobuf:"bytes,2,rep,name=items"`
}
