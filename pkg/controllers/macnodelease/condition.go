package macnodelease

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// setCondition gives a lease a condition, as of now, if that is news. The lease itself, which may
// be the cache's, stays.
func setCondition(ctx context.Context, lease *rackv1alpha1.MacNodeLease, c metav1.Condition, now time.Time, update func(ctx context.Context, before, after *rackv1alpha1.MacNodeLease) error) error {
	c.ObservedGeneration, c.LastTransitionTime = lease.Generation, metav1.NewTime(now)
	after := lease.DeepCopy()
	if !meta.SetStatusCondition(&after.Status.Conditions, c) {
		return nil
	}
	return update(ctx, lease, after)
}
