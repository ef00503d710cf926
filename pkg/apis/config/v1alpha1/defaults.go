package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"macrack.io/macrack/pkg/apis/scalar"
)

// Defaults of a RackConfig.
const (
	// DefaultAuditRetention is the retention period of audit records.
	DefaultAuditRetention = 400 * 24 * time.Hour
	// DefaultHeartbeatInterval is the interval at which an agent renews the Lease of its Node.
	DefaultHeartbeatInterval = 10 * time.Second
	// DefaultOfflineAfter is the time without a heartbeat after which a Mac is Offline.
	DefaultOfflineAfter = time.Minute
	// DefaultMinimumFree is the number of bytes kept free on a Mac's disk.
	DefaultMinimumFree = 20 << 30
)

// SetDefaults_RackConfigSpec sets the defaults of a configuration.
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
