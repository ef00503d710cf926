package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/rules"
)

// renewalAttempts is the number of attempts to write a Lease that others write too.
const renewalAttempts = 3

// maxDoublings limits the number of times that the pause after a failure doubles.
const maxDoublings = 8

// timers has the time between renewals.
var timers clock.RealClock

// heartbeats renews the Lease of a Node. The library's own controller cannot change its interval.
type heartbeats struct {
	node   string
	leases coordinationclient.LeaseInterface
	nodes  corev1client.NodeInterface
	// clock has the times in the Lease. A test cluster can advance it.
	clock clock.PassiveClock

	mu       sync.Mutex
	interval time.Duration
	changed  chan struct{} // has an element if the interval has changed since the last renewal

	// last is the Lease as it was written last; only the renewing goroutine uses it.
	last *coordinationv1.Lease
}

func newHeartbeats(node string, client kubernetes.Interface, c clock.PassiveClock) *heartbeats {
	return &heartbeats{
		node: node, leases: client.CoordinationV1().Leases(corev1.NamespaceNodeLease), nodes: client.CoreV1().Nodes(),
		clock: c, interval: DefaultHeartbeat, changed: make(chan struct{}, 1),
	}
}

// set sets the interval.
func (h *heartbeats) set(interval time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if interval == h.interval {
		return
	}
	klog.InfoS("Heartbeat interval changed", "interval", interval)
	h.interval = interval
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *heartbeats) get() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.interval
}

// run renews the Lease until ctx ends. After a failure, it retries sooner than after the interval,
// but less and less often, because the API may be overloaded.
func (h *heartbeats) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		interval := h.get()
		limited, cancel := context.WithTimeout(ctx, interval)
		err := h.renew(limited, interval)
		cancel()
		pause := interval
		if err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			pause = min(registerRetry<<failures, DefaultHeartbeat, interval)
			failures = min(failures+1, maxDoublings)
			klog.ErrorS(err, "Failed to renew Lease; retrying", "node", h.node, "after", pause)
		}
		h.wait(ctx, timers.Now().Add(jitter(pause)))
	}
}

// wait waits until a time. A shorter interval can move it: then the agents of a fleet renew at
// random times of the new interval, and not all at once. A longer interval applies after the next
// renewal.
func (h *heartbeats) wait(ctx context.Context, until time.Time) {
	for {
		timer := timers.NewTimer(until.Sub(timers.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
			return
		case <-h.changed:
			timer.Stop()
			if sooner := timers.Now().Add(rand.N(h.get())); sooner.Before(until) {
				until = sooner
			}
		}
	}
}

// jitter returns a pause that is up to 5% shorter, so that agents that started together do not
// renew together for ever.
func jitter(pause time.Duration) time.Duration { return pause - rand.N(pause/20+1) }

// renew writes the time into the Lease, and creates an absent Lease.
func (h *heartbeats) renew(ctx context.Context, interval time.Duration) (err error) {
	for range renewalAttempts {
		if h.last == nil {
			if h.last, err = h.leases.Get(ctx, h.node, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				h.last, err = h.create(ctx, interval)
				return err
			}
			if err != nil {
				h.last = nil
				return err
			}
		}
		var written *coordinationv1.Lease
		if written, err = h.leases.Update(ctx, h.stamp(h.last, interval), metav1.UpdateOptions{}); err == nil {
			h.last = written
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		h.last = nil
	}
	return err
}

func (h *heartbeats) stamp(lease *coordinationv1.Lease, interval time.Duration) *coordinationv1.Lease {
	lease = lease.DeepCopy()
	seconds := int32(rules.LeaseDuration(interval) / time.Second)
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &metav1.MicroTime{Time: h.clock.Now()}
	return lease
}

// create creates the Lease with the current Node as its owner. If that was deleted since, the
// garbage collector deletes the Lease, and the next renewal creates it again.
func (h *heartbeats) create(ctx context.Context, interval time.Duration) (*coordinationv1.Lease, error) {
	node, err := h.nodes.Get(ctx, h.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("owner of the Lease: %w", err)
	}
	lease, err := h.leases.Create(ctx, h.stamp(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: h.node, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.node},
	}, interval), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return lease, nil
}
