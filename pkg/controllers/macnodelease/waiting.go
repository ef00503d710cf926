package macnodelease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
)

// waiter sets the condition of a pending lease to the reason why it waits. Its keys are leases that
// the binder found no Mac for.
type waiter struct {
	clock   clock.PassiveClock
	leases  racklisters.MacNodeLeaseLister
	classes racklisters.MacNodeClassLister
	index   classIndex
	client  rackclient.MacNodeLeasesGetter

	// summaries are cached by class, because many leases may wait for one class of many Macs.
	mu        sync.Mutex
	summaries map[string]summary
}

func newWaiter(deps *shared.Dependencies) *waiter {
	return &waiter{
		clock:     deps.Clock,
		leases:    deps.MacNodeLeases.Lister(),
		classes:   deps.MacNodeClasses.Lister(),
		index:     deps,
		client:    deps.MacRack.RackV1alpha1(),
		summaries: map[string]summary{},
	}
}

// summary is the reason why a lease for any Mac of a class waits. It is empty if a Mac is free.
type summary struct {
	reason, message string
	// due is the time at which the message changes although nothing else has changed, or the zero
	// time.
	due time.Time
}

// classChanged drops the summary of a class.
func (w *waiter) classChanged(class string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.summaries, class)
}

func (w *waiter) reconcile(ctx context.Context, key string) (time.Time, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return time.Time{}, err
	}
	lease, err := w.leases.MacNodeLeases(namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && !waits(lease) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	why, err := w.explain(lease)
	if err != nil || why.reason == "" {
		return time.Time{}, err
	}
	err = setCondition(ctx, w.client, lease, metav1.Condition{
		Type: rackv1alpha1.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: why.reason, Message: why.message,
	}, w.clock.Now())
	return why.due, err
}

// explain returns the reason why lease has no Mac. It is empty if a Mac is free, as the lease is
// about to be bound.
func (w *waiter) explain(lease *rackv1alpha1.MacNodeLease) (summary, error) {
	class := lease.Spec.ClassName
	if lease.Spec.SerialNumber != "" {
		macs, err := w.index.MacsOf(class)
		return explainSerial(class, lease.Spec.SerialNumber, macs), err
	}
	// The lock is held during the computation, so that one class is summarised once for many
	// leases.
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, found := w.summaries[class]; found && (known.due.IsZero() || w.clock.Now().Before(known.due)) {
		return known, nil
	}
	macs, err := w.index.MacsOf(class)
	if err != nil {
		return summary{}, err
	}
	found, err := w.explainClass(class, macs)
	if err != nil {
		return summary{}, err
	}
	w.summaries[class] = found
	return found, nil
}

func (w *waiter) explainClass(class string, macs []*rackv1alpha1.MacNode) (summary, error) {
	if len(macs) == 0 {
		if _, err := w.classes.Get(class); err != nil {
			return summary{
				reason:  rackv1alpha1.ReasonUnknownClass,
				message: fmt.Sprintf("MacNodeClass %q not found; list the classes with kubectl get macnodeclasses", class),
			}, shared.IgnoreNotFound(err)
		}
		return summary{reason: rackv1alpha1.ReasonEmptyClass, message: fmt.Sprintf("MacNodeClass %q has no Macs; an administrator must add one, or create the lease with another class", class)}, nil
	}
	if slices.ContainsFunc(macs, predicates.IsAvailable) {
		return summary{}, nil
	}
	when, due := w.earliest(macs)
	return summary{rackv1alpha1.ReasonNoMacAvailable, fmt.Sprintf("waiting for a Mac of class %s: %s%s", class, w.count(macs), when), due}, nil
}

func explainSerial(class, serial string, macs []*rackv1alpha1.MacNode) summary {
	if slices.ContainsFunc(macs, func(mac *rackv1alpha1.MacNode) bool {
		return mac.Spec.SerialNumber == serial && predicates.IsAvailable(mac)
	}) {
		return summary{}
	}
	return summary{reason: rackv1alpha1.ReasonMacNotAvailable, message: fmt.Sprintf("no Mac of class %s with serial number %s is free; to get any free Mac of the class, create a lease without spec.serialNumber", class, serial)}
}

const stateHeld = string(rackv1alpha1.MacNodeLeaseHeld)

// states are the states of Macs in the order in which they are listed.
var states = []string{
	string(rackv1alpha1.MacNodeLeased),
	stateHeld,
	string(rackv1alpha1.MacNodeReleasing),
	string(rackv1alpha1.MacNodeQuarantined),
	string(rackv1alpha1.MacNodeOffline),
	string(rackv1alpha1.MacNodeMaintenance),
	string(rackv1alpha1.MacNodePending),
	string(rackv1alpha1.MacNodeAvailable),
}

// state returns the phase of mac, or Held if its lease is held.
func (w *waiter) state(mac *rackv1alpha1.MacNode) string {
	if mac.Status.Phase == rackv1alpha1.MacNodeLeased {
		if lease := w.leaseOn(mac); lease != nil && lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld {
			return stateHeld
		}
	}
	if mac.Status.Phase == "" {
		return string(rackv1alpha1.MacNodePending)
	}
	return string(mac.Status.Phase)
}

// leaseOn returns the lease of mac, or nil if the cache does not have it.
func (w *waiter) leaseOn(mac *rackv1alpha1.MacNode) *rackv1alpha1.MacNodeLease {
	ref := mac.Status.LeaseRef
	if ref == nil {
		return nil
	}
	lease, err := w.leases.MacNodeLeases(ref.Namespace).Get(ref.Name)
	if err != nil || lease.UID != ref.UID {
		return nil
	}
	return lease
}

// count returns the number of macs in each state, as "3 Leased, 1 Held, 0 Available".
func (w *waiter) count(macs []*rackv1alpha1.MacNode) string {
	counts := map[string]int{}
	for _, mac := range macs {
		counts[w.state(mac)]++
	}
	var list []string
	for _, state := range states {
		if counts[state] > 0 || state == string(rackv1alpha1.MacNodeAvailable) {
			list = append(list, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	return strings.Join(list, ", ")
}

// earliest returns a sentence about when the first of macs is released, and the time at which this
// sentence expires.
func (w *waiter) earliest(macs []*rackv1alpha1.MacNode) (sentence string, due time.Time) {
	now := w.clock.Now()
	var earliest time.Time
	var certain, leased bool
	for _, mac := range macs {
		if mac.Status.LeaseRef == nil {
			continue
		}
		leased = true
		if mac.Status.ReleasingSince != nil {
			return "; the earliest is being released now", time.Time{}
		}
		at, sure := w.releaseTime(mac)
		// A time in the past is no information: the tenant may delete the lease now, or in a year.
		if at.After(now) && (earliest.IsZero() || at.Before(earliest)) {
			earliest, certain = at, sure
		}
	}
	switch {
	case !leased:
		return "", time.Time{}
	case earliest.IsZero():
		return "; the floor has passed, and the Mac is released when its tenant deletes the lease", time.Time{}
	case certain:
		return "; the earliest is released at " + earliest.UTC().Format(time.RFC3339), earliest
	default:
		return "; the earliest can be released at " + earliest.UTC().Format(time.RFC3339), earliest
	}
}

// releaseTime returns when mac can be released, and whether that is certain: unless the lease is
// held or expires, its tenant may keep the Mac longer.
func (w *waiter) releaseTime(mac *rackv1alpha1.MacNode) (at time.Time, certain bool) {
	lease := w.leaseOn(mac)
	if lease == nil || lease.Status.BoundAt == nil {
		if mac.Status.EarliestReleaseAt == nil {
			return time.Time{}, false
		}
		return mac.Status.EarliestReleaseAt.Time, false
	}
	if lease.Status.Phase == rackv1alpha1.MacNodeLeaseHeld {
		return predicates.Floor(lease), true
	}
	if expiry := predicates.Expiry(lease); !expiry.IsZero() {
		return expiry, true
	}
	return predicates.Floor(lease), false
}
