// Package validation validates objects of config.macrack.io.
package validation

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

const (
	minHeartbeatInterval = time.Second
	maxOfflineAfter      = 24 * time.Hour
	maxRebootsPerDay     = 24
)

var (
	minMinimumFree = resource.MustParse("1Gi")
	maxMinimumFree = resource.MustParse("16Ti")
)

// ValidateRackConfig returns the errors in a new RackConfig.
func ValidateRackConfig(c *config.RackConfig) field.ErrorList {
	errs := check.NewMeta(&c.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	if len(errs) == 0 && c.Name != config.RackConfigName {
		errs = append(errs, field.NotSupported(field.NewPath("metadata", "name"), c.Name, []string{config.RackConfigName}))
	}
	return append(errs, validateRackConfigSpec(&c.Spec, field.NewPath("spec"))...)
}

// ValidateRackConfigUpdate returns the errors in a change of a RackConfig.
func ValidateRackConfigUpdate(c, old *config.RackConfig) field.ErrorList {
	errs := check.UpdatedMeta(&c.ObjectMeta, &old.ObjectMeta)
	return append(errs, validateRackConfigSpec(&c.Spec, field.NewPath("spec"))...)
}

// ValidateRackConfigStatusUpdate returns the errors in a change of a RackConfig's status.
func ValidateRackConfigStatusUpdate(c, old *config.RackConfig) field.ErrorList {
	errs := check.UpdatedMeta(&c.ObjectMeta, &old.ObjectMeta)
	if interval := c.Status.HeartbeatInterval; interval != nil {
		errs = append(errs, check.Duration(interval, minHeartbeatInterval, rules.MaxFleetHeartbeatInterval, field.NewPath("status", "heartbeatInterval"))...)
	}
	if n := c.Status.ImagesAwaitingMac; n != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*n), field.NewPath("status", "imagesAwaitingMac"))...)
	}
	return errs
}

func validateRackConfigSpec(spec *config.RackConfigSpec, path *field.Path) field.ErrorList {
	errs := check.Duration(spec.Audit.Retention, rules.MinimumAuditRetention, rules.MaxAuditRetention, path.Child("audit", "retention"))
	if spec.ImageCache.MinimumFree == nil {
		errs = append(errs, field.Required(path.Child("imageCache", "minimumFree"), ""))
	} else {
		errs = append(errs, check.Amount(*spec.ImageCache.MinimumFree, minMinimumFree, maxMinimumFree, path.Child("imageCache", "minimumFree"))...)
	}
	errs = append(errs, validateAgentConfig(&spec.Agent, path.Child("agent"))...)
	errs = append(errs, check.Enum(spec.Quarantine.Reboot, path.Child("quarantine", "reboot"), config.RebootNever, config.RebootWhenEmpty)...)
	if n := spec.Quarantine.MaximumRebootsPerDay; n < 0 || n > maxRebootsPerDay {
		errs = append(errs, field.Invalid(path.Child("quarantine", "maximumRebootsPerDay"), n, fmt.Sprintf("must be from 1 to %d; omit it for 3", maxRebootsPerDay)))
	}
	if spec.DefaultClassName != "" {
		errs = append(errs, check.Name(spec.DefaultClassName, path.Child("defaultClassName"))...)
	}
	network := path.Child("guestNetwork")
	errs = append(errs, check.AllowedCIDRs(spec.GuestNetwork.AllowedCIDRs, network.Child("allowedCIDRs"))...)
	return append(errs, check.AllowedNames(spec.GuestNetwork.AllowedNames, network.Child("allowedNames"))...)
}

func validateAgentConfig(agent *config.AgentConfig, path *field.Path) field.ErrorList {
	heartbeat, offline := path.Child("heartbeatInterval"), path.Child("offlineAfter")
	errs := check.Duration(agent.HeartbeatInterval, minHeartbeatInterval, rules.MaxHeartbeatInterval, heartbeat)
	errs = append(errs, check.Duration(agent.OfflineAfter, rules.MinimumMissedHeartbeats*minHeartbeatInterval, maxOfflineAfter, offline)...)
	if len(errs) > 0 {
		return errs
	}
	if least := rules.MinimumMissedHeartbeats * agent.HeartbeatInterval.Value(); agent.OfflineAfter.Value() < least {
		errs = append(errs, field.Invalid(offline, agent.OfflineAfter.Text,
			fmt.Sprintf("must be %d heartbeats, %s, or more, so that one late heartbeat does not make a Mac Offline", rules.MinimumMissedHeartbeats, scalar.NewDuration(least))))
	}
	return errs
}
