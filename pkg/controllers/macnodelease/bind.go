// Package macnodelease runs the life of a lease. It binds the lease to a free Mac, or reports why
// the lease waits. A lease deleted before its floor is held; once the floor has passed and the Mac
// is empty, the lease is released.
package macnodelease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
)

// parallelBindings is the number of leases of a class that are bound at a time.
const parallelBindings = 16

// binder binds pending leases to free Macs. Its keys are names of MacNodeClasses: the leases of one
// class get their Macs in the order of their creation. If a Mac turns out to be unavailable, its
// lease gets one of those that are left.
type binder struct {
	index    classIndex
	client   rackclient.RackV1alpha1Interface
	recorder record.EventRecorder
	// waiting receives the keys of the leases that found no Mac.
	waiting  queue
	parallel int
}

// classIndex finds objects of a MacNodeClass in the cache.
type classIndex interface {
	LeasesOf(class string) ([]*rackv1alpha1.MacNodeLease, error)
	MacsOf(class string) ([]*rackv1alpha1.MacNode, error)
}

// queue is the queue of another controller.
type queue interface {
	Enqueue(key string)
}

func newBinder(deps *shared.Dependencies, waiting queue) *binder {
	return &binder{index: deps, client: deps.MacRack.RackV1alpha1(), recorder: deps.Recorder, waiting: waiting, parallel: parallelBindings}
}

func (b *binder) reconcile(ctx context.Context, class string) (time.Time, error) {
	leases, err := b.index.LeasesOf(class)
	if err != nil {
		return time.Time{}, err
	}
	pending := inOrder(leases)
	if len(pending) == 0 {
		return time.Time{}, nil
	}
	macs, err := b.index.MacsOf(class)
	if err != nil {
		return time.Time{}, err
	}
	free := slices.DeleteFunc(slices.Clone(macs), func(mac *rackv1alpha1.MacNode) bool { return !predicates.IsAvailable(mac) })
	askedFor := map[string]bool{}
	for _, lease := range pending {
		askedFor[lease.Spec.SerialNumber] = true
	}

	var errs []error
	for len(pending) > 0 {
		var attempts []*attempt
		attempts, pending, free = assign(pending, free, askedFor)
		if len(attempts) == 0 {
			break
		}
		workqueue.ParallelizeUntil(ctx, b.parallel, len(attempts), func(i int) { attempts[i].outcome, attempts[i].err = b.attempt(ctx, attempts[i]) })
		for _, a := range attempts {
			switch a.outcome {
			case macUnavailable:
				pending = append(pending, a.lease)
			case leaseUnavailable:
				free = append(free, a.mac)
			}
			if a.err != nil {
				errs = append(errs, fmt.Errorf("lease %s: %w", klog.KObj(a.lease), a.err))
			}
		}
		pending = inOrder(pending)
	}
	for _, lease := range pending {
		b.waiting.Enqueue(shared.Key(lease))
	}
	return time.Time{}, errors.Join(errs...)
}

// An attempt binds a lease to a Mac.
type attempt struct {
	lease   *rackv1alpha1.MacNodeLease
	mac     *rackv1alpha1.MacNode
	outcome outcome
	err     error
}

// outcome is the state of a lease and a Mac after an attempt.
type outcome int

const (
	// bound includes requests without an answer: the lease may be bound.
	bound outcome = iota
	// macUnavailable means that the lease needs another Mac.
	macUnavailable
	// leaseUnavailable means that another lease can have the Mac.
	leaseUnavailable
)

// assign chooses a Mac for each of the leases in turn. It also returns the leases without one, and
// the Macs that are left.
func assign(pending []*rackv1alpha1.MacNodeLease, free []*rackv1alpha1.MacNode, askedFor map[string]bool) (attempts []*attempt, waiting []*rackv1alpha1.MacNodeLease, left []*rackv1alpha1.MacNode) {
	left = slices.Clone(free)
	for _, lease := range pending {
		mac := choose(lease, left, askedFor)
		if mac == nil {
			waiting = append(waiting, lease)
			continue
		}
		left = slices.DeleteFunc(left, func(m *rackv1alpha1.MacNode) bool { return m == mac })
		attempts = append(attempts, &attempt{lease: lease, mac: mac})
	}
	return attempts, waiting, left
}

// inOrder returns the leases that wait for a Mac, oldest first.
func inOrder(leases []*rackv1alpha1.MacNodeLease) []*rackv1alpha1.MacNodeLease {
	pending := slices.DeleteFunc(slices.Clone(leases), func(lease *rackv1alpha1.MacNodeLease) bool { return !waits(lease) })
	slices.SortFunc(pending, func(a, b *rackv1alpha1.MacNodeLease) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return pending
}

func waits(lease *rackv1alpha1.MacNodeLease) bool {
	return lease.Status.Phase == rackv1alpha1.MacNodeLeasePending && lease.DeletionTimestamp == nil
}

// attempt binds a lease to a Mac. The cache may be stale: after a refusal, the objects are read
// from the server.
func (b *binder) attempt(ctx context.Context, a *attempt) (outcome, error) {
	refusal := b.bind(ctx, a.lease, a.mac)
	if refusal == nil || !isRefusal(refusal) {
		return bound, refusal
	}
	lease, err := b.client.MacNodeLeases(a.lease.Namespace).Get(ctx, a.lease.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (lease.UID != a.lease.UID || !waits(lease)) {
		return leaseUnavailable, nil
	}
	if err != nil {
		return leaseUnavailable, err
	}
	mac, err := b.client.MacNodes().Get(ctx, a.mac.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !predicates.IsAvailable(mac) {
		return macUnavailable, nil
	}
	if err != nil {
		return leaseUnavailable, err
	}
	b.recorder.Eventf(a.lease, corev1.EventTypeWarning, eventBindFailed, "binding to MacNode %s refused: %v", a.mac.Name, refusal)
	return leaseUnavailable, refusal
}

func (b *binder) bind(ctx context.Context, lease *rackv1alpha1.MacNodeLease, mac *rackv1alpha1.MacNode) error {
	binding := &rackv1alpha1.MacNodeLeaseBinding{ObjectMeta: metav1.ObjectMeta{UID: lease.UID}, NodeName: mac.Name}
	_, err := b.client.MacNodeLeases(lease.Namespace).Bind(ctx, lease.Name, binding, shared.CreateOptions)
	return err
}

// isRefusal reports whether the server has rejected the request, rather than failed.
func isRefusal(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.IsNotFound(err) || apierrors.IsInvalid(err)
}

// choose returns the Mac that suits lease best, or nil if none is free. That is the Mac with the
// requested serial number; else the one with most of the images that the lease will need; else one
// whose serial number no other lease requests.
func choose(lease *rackv1alpha1.MacNodeLease, free []*rackv1alpha1.MacNode, askedFor map[string]bool) *rackv1alpha1.MacNode {
	var best *rackv1alpha1.MacNode
	for _, mac := range free {
		if predicates.Suits(lease, mac) && (best == nil || compareMacs(lease, mac, best, askedFor) < 0) {
			best = mac
		}
	}
	return best
}

func compareMacs(lease *rackv1alpha1.MacNodeLease, a, b *rackv1alpha1.MacNode, askedFor map[string]bool) int {
	asked := func(mac *rackv1alpha1.MacNode) int {
		if askedFor[mac.Spec.SerialNumber] {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(imagesHeld(lease, b), imagesHeld(lease, a)),
		cmp.Compare(asked(a), asked(b)),
		cmp.Compare(a.Name, b.Name),
	)
}

func imagesHeld(lease *rackv1alpha1.MacNodeLease, mac *rackv1alpha1.MacNode) int {
	held := 0
	for _, image := range mac.Status.Images {
		if slices.Contains(lease.Spec.PrefetchImages, image.Name) {
			held++
		}
	}
	return held
}
