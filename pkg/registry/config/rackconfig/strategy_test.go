package rackconfig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/config/install"
	"macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/genericstrategy/strategytest"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

func TestStrategy(t *testing.T) {
	stored := func() *config.RackConfig {
		minimumFree := scalar.MustParse("20Gi")
		return &config.RackConfig{
			ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "u1", ResourceVersion: "1", Generation: 1},
			Spec: config.RackConfigSpec{
				Audit:      config.AuditConfig{Retention: scalar.NewDuration(400 * 24 * time.Hour)},
				ImageCache: config.ImageCacheConfig{MinimumFree: &minimumFree},
				Agent:      config.AgentConfig{HeartbeatInterval: scalar.NewDuration(10 * time.Second), OfflineAfter: scalar.NewDuration(time.Minute)},
				Quarantine: config.QuarantineConfig{Reboot: config.RebootNever},
			},
		}
	}
	strategy := NewStrategy(newScheme())
	c := stored()
	c.ResourceVersion, c.Generation = "", 7
	require.NoError(t, strategytest.Create(t, strategy, c))
	assert.EqualValues(t, 1, c.Generation)

	c = stored()
	c.Name, c.ResourceVersion = "other", ""
	assert.ErrorContains(t, strategytest.Create(t, strategy, c), "metadata.name")

	c = stored()
	c.Spec.DefaultClassName = "m4"
	require.NoError(t, strategytest.Update(t, strategy, c, stored()))
	assert.EqualValues(t, 2, c.Generation)

	c.Spec.Audit.Retention = scalar.NewDuration(time.Hour)
	assert.ErrorContains(t, strategytest.Update(t, strategy, c, stored()), "spec.audit.retention")

	fleet := config.RackConfigStatus{HeartbeatInterval: scalar.NewDuration(20 * time.Second)}
	c = stored()
	c.Status = fleet
	require.NoError(t, strategytest.Update(t, strategy, c, stored()))
	assert.Zero(t, c.Status, "only the subresource writes the status")
	c = stored()
	c.Spec.DefaultClassName, c.Status = "m4", fleet
	require.NoError(t, strategytest.Update(t, NewStatusStrategy(strategy), c, stored()))
	assert.Equal(t, fleet, c.Status)
	assert.Equal(t, stored().Spec, c.Spec, "the subresource writes only the status")
	c.Status.HeartbeatInterval = scalar.NewDuration(21 * time.Second)
	assert.ErrorContains(t, strategytest.Update(t, NewStatusStrategy(strategy), c, stored()), "status.heartbeatInterval")

	_, set, err := GetAttrs(stored())
	require.NoError(t, err)
	strategytest.Selectors(t, newScheme(), v1alpha1.SchemeGroupVersion.WithKind("RackConfig"), set)
}
