// Package macnode keeps the condition Ready of MacNodes. An agent's heartbeat is the renewal of its
// Node's Lease in kube-node-lease. A missed heartbeat does not prove that the virtual machines
// ended: an offline Mac gets no new lease, and keeps its lease and its virtual machines.
package macnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
	configlisters "macrack.io/macrack/pkg/generated/listers/config/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
)

// Reasons of the condition Ready.
const (
	// ReasonHeartbeat means that the agent is online.
	ReasonHeartbeat = "Heartbeat"
	// ReasonHeartbeatMissing means that the agent has been silent for longer than RackConfig
	// allows.
	ReasonHeartbeatMissing = "HeartbeatMissing"

	messageHeartbeat = "the agent sends heartbeats"
)

// heartbeats has the time of each agent's last heartbeat by the clock of this process, because the
// clocks of the Macs are not reliable. After a start, every agent has the full time to send one.
type heartbeats struct {
	now func() time.Time

	mu   sync.Mutex
	last map[string]heartbeat
}

type heartbeat struct {
	// renewed is the time that the agent has written.
	renewed time.Time
	// since is the time at which the silence began, as far as this process can tell.
	since time.Time
	// lease is the duration of the Lease as the agent has written it.
	lease time.Duration
	// heard reports that the agent has sent a heartbeat since this process started to watch.
	heard bool
}

func newHeartbeats(now func() time.Time) *heartbeats {
	return &heartbeats{now: now, last: map[string]heartbeat{}}
}

// observe records a heartbeat. A known Lease existed before this process started to watch; it
// proves nothing until its next renewal.
func (h *heartbeats) observe(lease *coordinationv1.Lease, known bool) (beat bool) {
	if lease.Spec.RenewTime == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last, seen := h.last[lease.Name]
	if seen && last.renewed.Equal(lease.Spec.RenewTime.Time) {
		return false
	}
	h.last[lease.Name] = heartbeat{
		renewed: lease.Spec.RenewTime.Time, since: h.now(), heard: !known || last.heard,
		lease: time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second,
	}
	return !known
}

// get returns the last heartbeat of a Mac. For an unknown Mac, the time of silence begins now.
func (h *heartbeats) get(name string) heartbeat {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, seen := h.last[name]; !seen {
		h.last[name] = heartbeat{since: h.now()}
	}
	return h.last[name]
}

// restart restarts the time of silence.
func (h *heartbeats) restart(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.last[name]
	last.since, last.heard = h.now(), false
	h.last[name] = last
}

func (h *heartbeats) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.last, name)
}

// reconciler writes the condition Ready of MacNodes.
type reconciler struct {
	clock      clock.PassiveClock
	heartbeats *heartbeats
	macs       racklisters.MacNodeLister
	configs    configlisters.RackConfigLister
	client     rackclient.MacNodesGetter
	recorder   record.EventRecorder
}

func newReconciler(deps *shared.Dependencies, h *heartbeats) *reconciler {
	return &reconciler{
		clock:      deps.Clock,
		heartbeats: h,
		macs:       deps.MacNodes.Lister(),
		configs:    deps.RackConfigs.Lister(),
		client:     deps.MacRack.RackV1alpha1(),
		recorder:   deps.Recorder,
	}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	mac, err := r.macs.Get(name)
	if apierrors.IsNotFound(err) {
		r.heartbeats.forget(name)
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	config, err := r.configs.Get(configv1alpha1.RackConfigName)
	if err != nil {
		config = nil // the defaults apply
	}
	last, now := r.heartbeats.get(name), r.clock.Now()
	silent, allowed := now.Sub(last.since), config.Heartbeats().AllowedSilence(last.lease)
	switch {
	case silent < allowed:
		if !last.heard {
			return last.since.Add(allowed), nil
		}
		return last.since.Add(allowed), r.write(ctx, mac, metav1.ConditionTrue, ReasonHeartbeat, messageHeartbeat)
	case silent >= 2*allowed:
		// This code runs as soon as the time is up. If that was long ago, this process has slept or
		// the clock was set, and the silence proves nothing.
		r.heartbeats.restart(name)
		return now.Add(allowed), nil
	case last.renewed.IsZero() && !wasSeen(mac):
		// The agent has never sent a heartbeat: the Mac is Pending.
		return time.Time{}, nil
	}
	message := fmt.Sprintf("the agent has sent no heartbeat for %s", allowed)
	if !last.renewed.IsZero() {
		message += "; the last one was at " + last.renewed.UTC().Format(time.RFC3339)
	}
	return time.Time{}, r.write(ctx, mac, metav1.ConditionFalse, ReasonHeartbeatMissing, message)
}

// wasSeen reports whether the agent of the Mac has ever sent a heartbeat. Until then the condition
// Ready is Unknown, or absent.
func wasSeen(mac *rackv1alpha1.MacNode) bool {
	ready := meta.FindStatusCondition(mac.Status.Conditions, rackv1alpha1.MacNodeReady)
	return ready != nil && ready.Status != metav1.ConditionUnknown
}

// write sets the condition Ready, and emits an Event when its status changes.
func (r *reconciler) write(ctx context.Context, mac *rackv1alpha1.MacNode, status metav1.ConditionStatus, reason, message string) error {
	turned := !meta.IsStatusConditionPresentAndEqual(mac.Status.Conditions, rackv1alpha1.MacNodeReady, status)
	after := mac.DeepCopy()
	if !meta.SetStatusCondition(&after.Status.Conditions, metav1.Condition{
		Type:               rackv1alpha1.MacNodeReady,
		Status:             status,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: mac.Generation,
		LastTransitionTime: metav1.NewTime(r.clock.Now()),
	}) {
		return nil
	}
	if _, err := shared.PatchStatus(ctx, r.client.MacNodes(), mac, after); err != nil || !turned {
		return err
	}
	eventType := corev1.EventTypeNormal
	if status == metav1.ConditionFalse {
		eventType = corev1.EventTypeWarning
	}
	r.recorder.Event(mac, eventType, reason, message)
	return nil
}
