// Package rackconfig writes the interval of heartbeats that the size of the fleet requires.
package rackconfig

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	configclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/config/v1alpha1"
	configlisters "macrack.io/macrack/pkg/generated/listers/config/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
)

// New returns the controller. Its only key is the name of the RackConfig.
func New(deps *shared.Dependencies) *controller.Controller {
	c := controller.New("rackconfig", deps.Clock, newReconciler(deps).reconcile)
	_, _ = deps.RackConfigs.Informer().AddEventHandler(controller.Handlers(func(_, after *configv1alpha1.RackConfig) {
		if after != nil {
			c.Enqueue(after.Name)
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		if before == nil || after == nil {
			c.Enqueue(configv1alpha1.RackConfigName)
		}
	}))
	return c
}

type reconciler struct {
	configs configlisters.RackConfigLister
	macs    racklisters.MacNodeLister
	client  configclient.RackConfigsGetter
}

func newReconciler(deps *shared.Dependencies) *reconciler {
	return &reconciler{configs: deps.RackConfigs.Lister(), macs: deps.MacNodes.Lister(), client: deps.MacRack.ConfigV1alpha1()}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	config, err := r.configs.Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	macs, err := r.macs.List(labels.Everything())
	if err != nil {
		return time.Time{}, err
	}
	heartbeats, current := config.Heartbeats(), config.Status.HeartbeatInterval.Value()
	interval := heartbeats.FleetInterval(len(macs), current)
	if interval == heartbeats.Interval {
		interval = 0 // the configured one applies
	}
	if interval == current {
		return time.Time{}, nil
	}
	changed := config.DeepCopy()
	changed.Status.HeartbeatInterval = nil
	if interval != 0 {
		changed.Status.HeartbeatInterval = scalar.NewDuration(interval)
	}
	_, err = shared.PatchStatus(ctx, r.client.RackConfigs(), config, changed)
	return time.Time{}, err
}
