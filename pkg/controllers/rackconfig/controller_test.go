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
	"k8s.io/utils/ptr"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
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
			config.Status.ImagesAwaitingMac = ptr.To(int32(0))
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

func TestImagesAwaitingMac(t *testing.T) {
	c := testutil.NewCluster(t, time.Now())
	image := func(name, reason string, generation int64) *imagev1alpha1.MacOSImage {
		return &imagev1alpha1.MacOSImage{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2},
			Status: imagev1alpha1.MacOSImageStatus{
				Phase:      imagev1alpha1.MacOSImagePending,
				Conditions: []metav1.Condition{{Type: imagev1alpha1.MacOSImageReadyCondition, Reason: reason, ObservedGeneration: generation}},
			},
		}
	}
	config := &configv1alpha1.RackConfig{ObjectMeta: metav1.ObjectMeta{Name: configv1alpha1.RackConfigName}}
	c.Add(config)
	for _, i := range []*imagev1alpha1.MacOSImage{
		image("private", imagev1alpha1.ReasonUnreachable, 2), image("new", imagev1alpha1.ReasonVerifying, 2), image("changed", imagev1alpha1.ReasonUnreachable, 1),
	} {
		c.Cache(i)
	}
	c.Record(func(_ clienttesting.Action, object runtime.Object) (string, error) {
		return fmt.Sprint(*object.(*configv1alpha1.RackConfig).Status.ImagesAwaitingMac), nil
	})
	_, err := newReconciler(c.Dependencies).reconcile(t.Context(), configv1alpha1.RackConfigName)
	require.NoError(t, err)
	assert.Equal(t, []string{"1"}, c.Calls)
}

func TestNoRackConfig(t *testing.T) {
	_, err := newReconciler(testutil.NewCluster(t, time.Now()).Dependencies).reconcile(t.Context(), configv1alpha1.RackConfigName)
	assert.NoError(t, err)
}
