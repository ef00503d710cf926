package validation

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/scalar"
)

func duration(d time.Duration) *scalar.Duration { return scalar.NewDuration(d) }

func validConfig() *config.RackConfig {
	return &config.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "default", ResourceVersion: "1"},
		Spec: config.RackConfigSpec{
			Audit:            config.AuditConfig{Retention: duration(400 * 24 * time.Hour)},
			ImageCache:       config.ImageCacheConfig{MinimumFree: ptr.To(scalar.MustParse("20Gi"))},
			Agent:            config.AgentConfig{HeartbeatInterval: duration(10 * time.Second), OfflineAfter: duration(time.Minute)},
			Quarantine:       config.QuarantineConfig{Reboot: config.RebootNever},
			DefaultClassName: "m4",
		},
	}
}

func manyCIDRs(n int) []string {
	var cidrs []string
	for i := range n {
		cidrs = append(cidrs, fmt.Sprintf("10.%d.0.0/16", i))
	}
	return cidrs
}

func TestValidateRackConfig(t *testing.T) {
	tests := map[string]struct {
		change func(*config.RackConfigSpec)
		want   []string
	}{
		"valid":                  {func(*config.RackConfigSpec) {}, nil},
		"90 days":                {func(s *config.RackConfigSpec) { s.Audit.Retention = duration(90 * 24 * time.Hour) }, nil},
		"89 days":                {func(s *config.RackConfigSpec) { s.Audit.Retention = duration(89 * 24 * time.Hour) }, []string{"spec.audit.retention: Invalid value: \"2136h\": must be 90d to 7300d"}},
		"days":                   {func(s *config.RackConfigSpec) { s.Audit.Retention = &scalar.Duration{Text: "90d"} }, nil},
		"years":                  {func(s *config.RackConfigSpec) { s.Audit.Retention = &scalar.Duration{Text: "1y"} }, []string{"spec.audit.retention: Invalid value: \"1y\": must be a duration such as 90s, 24h, 1h30m or 3d; accepted units: d"}},
		"a dozen":                {func(s *config.RackConfigSpec) { s.ImageCache.MinimumFree = &scalar.Quantity{Text: "a dozen"} }, []string{"spec.imageCache.minimumFree: Invalid value: \"a dozen\": must be an amount such as 4, 8Gi or 512G; accepted suffixes: Ki, Mi"}},
		"a century":              {func(s *config.RackConfigSpec) { s.Audit.Retention = duration(100 * 365 * 24 * time.Hour) }, []string{"spec.audit.retention: Invalid"}},
		"no retention":           {func(s *config.RackConfigSpec) { s.Audit.Retention = nil }, []string{"spec.audit.retention: Required"}},
		"no room":                {func(s *config.RackConfigSpec) { s.ImageCache.MinimumFree = ptr.To(scalar.MustParse("0")) }, []string{"spec.imageCache.minimumFree: Invalid value: \"0\": must be 1Gi to 16Ti"}},
		"no minimum":             {func(s *config.RackConfigSpec) { s.ImageCache.MinimumFree = nil }, []string{"spec.imageCache.minimumFree: Required"}},
		"hasty heartbeat":        {func(s *config.RackConfigSpec) { s.Agent.HeartbeatInterval = duration(time.Second / 2) }, []string{"spec.agent.heartbeatInterval: Invalid value: \"500ms\": must be 1s to 5m"}},
		"slow heartbeat":         {func(s *config.RackConfigSpec) { s.Agent.HeartbeatInterval = duration(6 * time.Minute) }, []string{"spec.agent.heartbeatInterval: Invalid"}},
		"three heartbeats":       {func(s *config.RackConfigSpec) { s.Agent.OfflineAfter = duration(30 * time.Second) }, nil},
		"two heartbeats":         {func(s *config.RackConfigSpec) { s.Agent.OfflineAfter = duration(20 * time.Second) }, []string{"spec.agent.offlineAfter: Invalid value: \"20s\": must be 3 heartbeats, 30s, or more"}},
		"never offline":          {func(s *config.RackConfigSpec) { s.Agent.OfflineAfter = duration(25 * time.Hour) }, []string{"spec.agent.offlineAfter: Invalid"}},
		"no offline":             {func(s *config.RackConfigSpec) { s.Agent.OfflineAfter = nil }, []string{"spec.agent.offlineAfter: Required"}},
		"reboot":                 {func(s *config.RackConfigSpec) { s.Quarantine.Reboot = config.RebootWhenEmpty }, nil},
		"reboots":                {func(s *config.RackConfigSpec) { s.Quarantine.MaximumRebootsPerDay = 24 }, nil},
		"too many reboots":       {func(s *config.RackConfigSpec) { s.Quarantine.MaximumRebootsPerDay = 25 }, []string{`spec.quarantine.maximumRebootsPerDay: Invalid value: 25: must be from 1 to 24; omit it for 3`}},
		"negative reboots":       {func(s *config.RackConfigSpec) { s.Quarantine.MaximumRebootsPerDay = -1 }, []string{`spec.quarantine.maximumRebootsPerDay: Invalid value: -1: must be from 1 to 24; omit it for 3`}},
		"reboot with tenants on": {func(s *config.RackConfigSpec) { s.Quarantine.Reboot = "Always" }, []string{`spec.quarantine.reboot: Unsupported value: "Always": supported values: "Never", "WhenEmpty"`}},
		"class":                  {func(s *config.RackConfigSpec) { s.DefaultClassName = "M4" }, []string{"spec.defaultClassName: Invalid"}},
		"guests' network": {func(s *config.RackConfigSpec) {
			s.GuestNetwork = config.GuestNetworkConfig{AllowedCIDRs: []string{"10.1.0.0/16", "192.168.7.9/32"}, AllowedNames: []string{"git.example.com", "*.corp"}}
		}, nil},
		"no network":        {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedCIDRs = []string{"10.1.0.0"} }, []string{`spec.guestNetwork.allowedCIDRs[0]: Invalid value: "10.1.0.0": must be an IPv4 network such as 10.20.0.0/16`}},
		"bits of a host":    {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedCIDRs = []string{"10.1.2.3/16"} }, []string{`spec.guestNetwork.allowedCIDRs[0]: Invalid value: "10.1.2.3/16": must end in zero bits; use 10.1.0.0/16`}},
		"IPv6":              {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedCIDRs = []string{"fd00::/8"} }, []string{`spec.guestNetwork.allowedCIDRs[0]: Invalid value: "fd00::/8": must be an IPv4 network such as 10.20.0.0/16; isolated guests have no IPv6`}},
		"a network twice":   {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedCIDRs = []string{"10.0.0.0/8", "10.0.0.0/8"} }, []string{"spec.guestNetwork.allowedCIDRs[1]: Duplicate"}},
		"too many networks": {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedCIDRs = manyCIDRs(65) }, []string{"spec.guestNetwork.allowedCIDRs: Too many: 65: must have at most 64 items"}},
		"every name":        {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedNames = []string{"*"} }, []string{`spec.guestNetwork.allowedNames[0]: Invalid value: "*": must be a DNS name in lower case such as git.example.com, or *.example.com for the names below it`}},
		"an address":        {func(s *config.RackConfigSpec) { s.GuestNetwork.AllowedNames = []string{"10.1.2.3"} }, []string{"spec.guestNetwork.allowedNames[0]: Invalid"}},
		"no class":          {func(s *config.RackConfigSpec) { s.DefaultClassName = "" }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := validConfig()
			tt.change(&c.Spec)
			checktest.Errors(t, tt.want, ValidateRackConfig(c))
			checktest.Errors(t, tt.want, ValidateRackConfigUpdate(c, validConfig()))
		})
	}
}

func TestOnlyOneRackConfig(t *testing.T) {
	c := validConfig()
	c.Name = "other"
	checktest.Errors(t, []string{`metadata.name: Unsupported value: "other": supported values: "default"`}, ValidateRackConfig(c))
}
