package macnodelease

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/shared"
	rackclient "macrack.io/macrack/pkg/generated/clientset/versioned/typed/rack/v1alpha1"
)

// setCondition writes a condition of a lease, unless the lease has it. The lease itself, which may
// be in the cache, is not changed.
func setCondition(ctx context.Context, client rackclient.MacNodeLeasesGetter, lease *rackv1alpha1.MacNodeLease, condition metav1.Condition, now time.Time) error {
	condition.ObservedGeneration, condition.LastTransitionTime = lease.Generation, metav1.NewTime(now)
	updated := lease.DeepCopy()
	if !meta.SetStatusCondition(&updated.Status.Conditions, condition) {
		return nil
	}
	_, err := shared.PatchStatus(ctx, client.MacNodeLeases(lease.Namespace), lease, updated)
	return err
}
