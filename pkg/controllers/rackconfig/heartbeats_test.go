package rackconfig

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/testutil"
)

func TestReconcile(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		macs                   int
		interval, offlineAfter time.Duration
		stored, want           string
	}{
		{name: "a small fleet", macs: 3},
		{name: "a large fleet", macs: 1200, want: "15s"},
		{name: "it has not changed", macs: 1200, stored: "15s"},
		{name: "it has shrunk a little", macs: 990, stored: "15s"},
		{name: "it has shrunk", macs: 300, stored: "15s", want: "none"},
		{name: "the configured interval is long enough", macs: 1200, interval: time.Minute, offlineAfter: 5 * time.Minute, stored: "15s", want: "none"},
		{name: "the configuration allows no longer interval", macs: 1200, interval: 10 * time.Second, offlineAfter: 30 * time.Second, stored: "15s", want: "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testutil.NewCluster(t, time.Now())
			config := &configv1alpha1.RackConfig{ObjectMeta: metav1.ObjectMeta{Name: configv1alpha1.RackConfigName}}
			if tt.interval != 0 {
				config.Spec.Agent = configv1alpha1.AgentConfig{HeartbeatInterval: scalar.NewDuration(tt.interval), OfflineAfter: scalar.NewDuration(tt.offlineAfter)}
			}
			if tt.stored != "" {
				config.Status.HeartbeatInterval = &scalar.Duration{Text: tt.stored}
			}
			c.Add(config)
			for n := range tt.macs {
				c.Cache(&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("mac-", n)}})
			}
			c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
				if interval := object.(*configv1alpha1.RackConfig).Status.HeartbeatInterval; interval != nil {
					return interval.Text, nil
				}
				return "none", nil
			})
			_, err := newReconciler(c.Dependencies).reconcile(t.Context(), configv1alpha1.RackConfigName)
			require.NoError(t, err)
			if tt.want == "" {
				assert.Empty(t, c.Calls)
			} else {
				assert.Equal(t, []string{tt.want}, c.Calls)
			}
		})
	}
}

func TestNoRackConfig(t *testing.T) {
	_, err := newReconciler(testutil.NewCluster(t, time.Now()).Dependencies).reconcile(t.Context(), configv1alpha1.RackConfigName)
	assert.NoError(t, err)
}
