package macnode

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/shared"
)

// New returns the controller. Its keys are names of MacNodes.
func New(deps *shared.Dependencies) *controller.Controller {
	return newController(deps, newHeartbeats(deps.Clock.Now))
}

func newController(deps *shared.Dependencies, h *heartbeats) *controller.Controller {
	c := controller.New("macnode", deps.Clock, newReconciler(deps, h).reconcile)

	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		if before == nil || after == nil || isReady(before) != isReady(after) {
			c.Enqueue(controller.Newest(before, after).Name)
		}
		if eventType, reason, message := describe(before, after); reason != "" {
			deps.Recorder.Event(after, eventType, reason, message)
		}
	}))
	observe := func(obj any, known bool) {
		lease, ok := obj.(*coordinationv1.Lease)
		if !ok || !h.observe(lease, known) {
			return
		}
		// Macs that are Ready have a timer; a heartbeat changes the condition of the others only.
		if mac, err := deps.MacNodes.Lister().Get(lease.Name); err == nil && !isReady(mac) {
			c.Enqueue(lease.Name)
		}
	}
	_, _ = deps.Heartbeats.Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, obj any) { observe(obj, false) },
		DeleteFunc: func(obj any) {
			key, err := cache.DeletionHandlingObjectToName(obj)
			if err != nil {
				return
			}
			// A deleted Lease does not restart the time of silence.
			if _, err := deps.MacNodes.Lister().Get(key.Name); apierrors.IsNotFound(err) {
				h.forget(key.Name)
			}
		},
	})
	_, _ = deps.RackConfigs.Informer().AddEventHandler(controller.Handlers(func(_, _ *configv1alpha1.RackConfig) {
		for _, name := range deps.MacNodes.Informer().GetStore().ListKeys() {
			c.Enqueue(name)
		}
	}))
	return c
}

func isReady(mac *rackv1alpha1.MacNode) bool {
	return meta.IsStatusConditionTrue(mac.Status.Conditions, rackv1alpha1.MacNodeReady)
}
