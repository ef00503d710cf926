package sets

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"

	"macrack.io/macrack/runners/pkg/floor"
	"macrack.io/macrack/runners/pkg/observe"
)

const (
	// expireAfter is the time after which a lease ends if no macrack-runners renews it. It is
	// renewed when less than expireBefore remains.
	expireAfter  = 72 * time.Hour
	expireBefore = 48 * time.Hour
	// refusedPause is the time after which a refused lease is tried again.
	refusedPause = time.Minute
)

// grow creates a lease. Its name is the first free one of a fixed row, so that two processes cannot
// create more than the maximum.
func (s *Set) grow(ctx context.Context, o *state, d floor.Decision) {
	taken := map[string]bool{}
	for _, lease := range o.leases {
		taken[lease.Name] = true
	}
	name := ""
	for n := 1; n <= s.config.Leases.Max && name == ""; n++ {
		if candidate := fmt.Sprintf("%s-%d", s.config.Name, n); !taken[candidate] {
			name = candidate
		}
	}
	if name == "" {
		return
	}
	lease, err := s.MacRack.RackV1alpha1().MacNodeLeases(s.Namespace).Create(ctx, &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{observe.LabelSet: s.config.Name}},
		Spec: rackv1alpha1.MacNodeLeaseSpec{
			ClassName: s.config.Leases.ClassName, PrefetchImages: s.config.Leases.PrefetchImages,
			ExpireAfter: scalar.NewDuration(expireAfter), Caches: s.config.Leases.Caches,
		},
	}, metav1.CreateOptions{})
	switch {
	case refuses(err), apierrors.IsAlreadyExists(err): // a lease of the user has the name
		reason := floor.LeaseRefused
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
			reason = floor.QuotaExceeded
		}
		s.refused = refusal{reason, err.Error(), o.now.Add(refusedPause)}
		s.Events.Event(s.Self, corev1.EventTypeWarning, string(reason), fmt.Sprintf("set %q: %v", s.config.Name, err))
		s.failedTo("create lease", err)
	case err != nil:
		s.failedTo("create lease", err)
	default:
		o.leases = append(o.leases, lease)
		s.leases.put(lease, o.now)
		klog.InfoS("Lease created", "lease", klog.KObj(lease), "reason", d.Reason)
		s.Events.Event(lease, corev1.EventTypeNormal, "LeaseRequested", d.String())
	}
}

// refuses reports whether an error is the refusal of an object: the same object is refused again.
func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err)
}

// release deletes a lease. It fails if the lease has changed since it was observed.
func (s *Set) release(ctx context.Context, o *state, d floor.Decision) {
	lease := o.lease(d.Lease)
	if lease == nil {
		return
	}
	err := s.MacRack.RackV1alpha1().MacNodeLeases(s.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		s.failedTo("delete lease", err)
		return
	}
	s.Events.Event(lease, corev1.EventTypeNormal, string(d.Action), d.String())
	klog.InfoS("Lease deleted", "lease", klog.KObj(lease), "decision", d.String())
}

// renew moves the end of each lease that is kept. A lease whose macrack-runners is gone ends.
func (s *Set) renew(ctx context.Context, o *state) {
	for _, lease := range o.leases {
		bound, expire := lease.Status.BoundAt, lease.Spec.ExpireAfter
		if lease.DeletionTimestamp != nil || bound == nil || expire == nil || bound.Add(expire.Value()).Sub(o.now) >= expireBefore {
			continue
		}
		lease = lease.DeepCopy()
		lease.Spec.ExpireAfter = scalar.NewDuration(o.now.Add(expireAfter).Sub(bound.Time).Truncate(time.Hour))
		s.update(ctx, o, lease, "renew lease")
	}
}

// jobEnded notes on a lease that a job has ended on it.
func (s *Set) jobEnded(ctx context.Context, name string, at time.Time) error {
	leases := s.MacRack.RackV1alpha1().MacNodeLeases(s.Namespace)
	return onFresh(func() error {
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !at.After(observe.Time(lease, observe.AnnotationJobEndedAt)) {
			return err
		}
		observe.SetTime(lease, observe.AnnotationJobEndedAt, at)
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

func (s *Set) update(ctx context.Context, o *state, lease *rackv1alpha1.MacNodeLease, action string) {
	updated, err := s.MacRack.RackV1alpha1().MacNodeLeases(s.Namespace).Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		s.failedTo(action, err)
		return
	}
	s.leases.put(updated, o.now)
}

// record publishes the decisions about leases that have changed.
func (s *Set) record(o *state, decisions []floor.Decision) {
	decided := map[string]floor.Decision{}
	s.Metrics.Decide(s.config.Name, decisions)
	for _, d := range decisions {
		if d.Action == floor.Place || d.Action == floor.Grow {
			continue
		}
		decided[d.Lease] = d
		if was := s.decided[d.Lease]; was.Action == d.Action && was.Reason == d.Reason {
			continue
		}
		klog.InfoS("Decision", "set", s.config.Name, "decision", d.String())
		switch lease := o.lease(d.Lease); {
		case d.Action == floor.Wait:
			s.Events.Event(s.Self, corev1.EventTypeWarning, string(d.Reason), fmt.Sprintf("set %q: %s", s.config.Name, d))
		case d.Action == floor.Keep && d.Reason != floor.Deleted && lease != nil:
			s.Events.Event(lease, corev1.EventTypeNormal, "Kept", d.String())
		}
	}
	s.decided = decided
}

func (o *state) lease(name string) *rackv1alpha1.MacNodeLease {
	for _, lease := range o.leases {
		if lease.Name == name {
			return lease
		}
	}
	return nil
}
