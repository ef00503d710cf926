// Package rackconfig writes what all agents must know to the status of the RackConfig, because all
// agents watch it: the interval of heartbeats that the size of the fleet requires, and whether
// images await a Mac.
package rackconfig

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
	configclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/config/v1alpha1"
	configlisters "macrack.io/macrack/pkg/generated/listers/config/v1alpha1"
	imagelisters "macrack.io/macrack/pkg/generated/listers/image/v1alpha1"
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
	_, _ = deps.MacOSImages.Informer().AddEventHandler(controller.Handlers(func(before, after *imagev1alpha1.MacOSImage) {
		if before == nil || after == nil || before.AwaitsMac() != after.AwaitsMac() {
			c.Enqueue(configv1alpha1.RackConfigName)
		}
	}))
	return c
}

type reconciler struct {
	configs configlisters.RackConfigLister
	macs    racklisters.MacNodeLister
	images  imagelisters.MacOSImageLister
	client  configclient.RackConfigsGetter
}

func newReconciler(deps *shared.Dependencies) *reconciler {
	return &reconciler{configs: deps.RackConfigs.Lister(), macs: deps.MacNodes.Lister(), images: deps.MacOSImages.Lister(), client: deps.MacRack.ConfigV1alpha1()}
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
	images, err := r.images.List(labels.Everything())
	if err != nil {
		return time.Time{}, err
	}
	changed := config.DeepCopy()
	setHeartbeatInterval(changed, len(macs))
	changed.Status.ImagesAwaitingMac = ptr.To(awaitingMac(images))
	if equality.Semantic.DeepEqual(config.Status, changed.Status) {
		return time.Time{}, nil
	}
	_, err = shared.PatchStatus(ctx, r.client.RackConfigs(), config, changed)
	return time.Time{}, err
}

// setHeartbeatInterval sets the interval for a number of Macs, if the configured one is too short
// for them.
func setHeartbeatInterval(config *configv1alpha1.RackConfig, macs int) {
	heartbeats, current := config.Heartbeats(), config.Status.HeartbeatInterval.Value()
	interval := heartbeats.FleetInterval(macs, current)
	switch interval {
	case heartbeats.Interval:
		config.Status.HeartbeatInterval = nil
	case current:
	default:
		config.Status.HeartbeatInterval = scalar.NewDuration(interval)
	}
}

// awaitingMac returns the number of images that only Macs can verify.
func awaitingMac(images []*imagev1alpha1.MacOSImage) (n int32) {
	for _, image := range images {
		if image.AwaitsMac() {
			n++
		}
	}
	return n
}
