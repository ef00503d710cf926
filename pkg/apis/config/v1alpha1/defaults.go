package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"macrack.io/macrack/pkg/apis/scalar"
)

// Defaults of a RackConfig.
const (
	// DefaultAuditRetention is how long records are kept.
	DefaultAuditRetention = 400 * 24 * time.Hour
	// DefaultHeartbeatInterval is how often an agent renews its Node's Lease.
	DefaultHeartbeatInterval = 10 * time.Second
	// DefaultOfflineAfter is how long an agent may be silent.
	DefaultOfflineAfter = time.Minute
	// DefaultMinimumFree is how many bytes of a Mac's disk are kept free.
	DefaultMinimumFree = 20 << 30
)

// SetDefaults_RackConfigSpec fills in what a configuration leaves open.
func SetDefaults_RackConfigSpec(spec *RackConfigSpec) {
	if spec.Audit.Retention == nil {
		spec.Audit.Retention = scalar.NewDays(DefaultAuditRetention)
	}
	if spec.ImageCache.MinimumFree == nil {
		minimumFree := scalar.NewQuantity(DefaultMinimumFree, resource.BinarySI)
		spec.ImageCache.MinimumFree = &minimumFree
	}
	if spec.Agent.HeartbeatInterval == nil {
		spec.Agent.HeartbeatInterval = scalar.NewDuration(DefaultHeartbeatInterval)
	}
	if spec.Agent.OfflineAfter == nil {
		spec.Agent.OfflineAfter = scalar.NewDuration(DefaultOfflineAfter)
	}
	if spec.Quarantine.Reboot == "" {
		spec.Quarantine.Reboot = RebootNever
	}
}
