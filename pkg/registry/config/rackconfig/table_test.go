package rackconfig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	minimumFree := scalar.MustParse("20Gi")
	list := &config.RackConfigList{Items: []config.RackConfig{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "default", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec: config.RackConfigSpec{
				Audit:            config.AuditConfig{Retention: scalar.NewDays(400 * 24 * time.Hour)},
				ImageCache:       config.ImageCacheConfig{MinimumFree: &minimumFree},
				Agent:            config.AgentConfig{HeartbeatInterval: scalar.NewDuration(10 * time.Second), OfflineAfter: &scalar.Duration{Text: "90s"}},
				Quarantine:       config.QuarantineConfig{Reboot: config.RebootNever},
				DefaultClassName: "m4",
			},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "large"},
			Spec:       config.RackConfigSpec{Agent: config.AgentConfig{HeartbeatInterval: scalar.NewDuration(10 * time.Second)}},
			Status:     config.RackConfigStatus{HeartbeatInterval: scalar.NewDuration(20 * time.Second)},
		},
	}}
	assert.Equal(t, []string{
		"NAME     RETENTION  HEARTBEAT  OFFLINE-AFTER  DEFAULT-CLASS  AGE        |  MINIMUM-FREE  REBOOT",
		"default  400d       10s        90s            m4             60m        |  20Gi          Never",
		"bare     <none>     <none>     <none>         <none>         <unknown>  |  <none>        <none>",
		"large    <none>     20s        <none>         <none>         <unknown>  |  <none>        <none>",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(now)), list))
}
