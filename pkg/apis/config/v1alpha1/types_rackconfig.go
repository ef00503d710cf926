package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// RackConfigName is the name of the only RackConfig.
const RackConfigName = "default"

// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RackConfig is the configuration of the fleet. There is one, named default. Nothing in it can change the
// three rules: two virtual machines on a Mac, one tenant, 24 hours.
type RackConfig struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the configuration.
	// +optional
	Spec RackConfigSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`
}

// RackConfigSpec is the configuration of the fleet.
type RackConfigSpec struct {
	// audit configures the ledger.
	// +optional
	Audit AuditConfig `json:"audit,omitempty" protobuf:"bytes,1,opt,name=audit"`
	// imageCache configures the images on the Macs' disks.
	// +optional
	ImageCache ImageCacheConfig `json:"imageCache,omitempty" protobuf:"bytes,2,opt,name=imageCache"`
	// agent configures how the Macs' agents are watched.
	// +optional
	Agent AgentConfig `json:"agent,omitempty" protobuf:"bytes,3,opt,name=agent"`
	// quarantine configures what is done with Macs in quarantine.
	// +optional
	Quarantine QuarantineConfig `json:"quarantine,omitempty" protobuf:"bytes,4,opt,name=quarantine"`
	// defaultClassName names the MacNodeClass of leases that name none.
	// +optional
	DefaultClassName string `json:"defaultClassName,omitempty" protobuf:"bytes,5,opt,name=defaultClassName"`
}

// AuditConfig configures the ledger.
type AuditConfig struct {
	// retention is how long records are kept: 90d or more, 400d by default. A duration such as 90d or 2160h; the units are
	// d (24 hours), h, m and s.
	// +optional
	Retention *scalar.Duration `json:"retention,omitempty" protobuf:"bytes,1,opt,name=retention"`
}

// ImageCacheConfig configures the images on the Macs' disks.
type ImageCacheConfig struct {
	// minimumFree is how much of a Mac's disk is kept free, in bytes, such as 20Gi, which is the default.
	// +optional
	MinimumFree *scalar.Quantity `json:"minimumFree,omitempty" protobuf:"bytes,1,opt,name=minimumFree"`
}

// AgentConfig configures how the Macs' agents are watched.
type AgentConfig struct {
	// heartbeatInterval is how often an agent renews its Node's Lease: 1s to 5m, 10s by default. A duration such as 10s or
	// 1m30s; the units are d, h, m and s.
	// +optional
	HeartbeatInterval *scalar.Duration `json:"heartbeatInterval,omitempty" protobuf:"bytes,1,opt,name=heartbeatInterval"`
	// offlineAfter is how long an agent may be silent before its Mac counts as offline: three heartbeats or more, 1m by
	// default. A duration such as 60s or 2m; the units are d, h, m and s.
	// +optional
	OfflineAfter *scalar.Duration `json:"offlineAfter,omitempty" protobuf:"bytes,2,opt,name=offlineAfter"`
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
	// reboot is Never, which is the default, or WhenEmpty.
	// +optional
	Reboot RebootPolicy `json:"reboot,omitempty" protobuf:"bytes,1,opt,name=reboot,casttype=RebootPolicy"`
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
