package v1alpha1

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

func TestHeartbeats(t *testing.T) {
	defaults := rules.Heartbeats{Interval: 10 * time.Second, OfflineAfter: time.Minute}
	assert.Equal(t, defaults, (*RackConfig)(nil).Heartbeats())
	assert.Equal(t, defaults, (&RackConfig{}).Heartbeats())
	config := &RackConfig{Spec: RackConfigSpec{Agent: AgentConfig{OfflineAfter: scalar.NewDuration(5 * time.Minute)}}}
	assert.Equal(t, rules.Heartbeats{Interval: 10 * time.Second, OfflineAfter: 5 * time.Minute}, config.Heartbeats())
	config.Spec.Agent.HeartbeatInterval = scalar.NewDuration(30 * time.Second)
	assert.Equal(t, rules.Heartbeats{Interval: 30 * time.Second, OfflineAfter: 5 * time.Minute}, config.Heartbeats())
}
