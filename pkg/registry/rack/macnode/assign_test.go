package macnode

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
)

func TestAssign(t *testing.T) {
	floor := metav1.NewTime(time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC))
	lease := &rack.MacNodeLease{Spec: rack.MacNodeLeaseSpec{
		PrefetchImages: []string{"tahoe"}, Caches: []rack.LeaseCache{{Name: "gems", SizeLimit: scalar.MustParse("5Gi")}},
	}}
	lease.Status.EarliestReleaseAt = &floor
	ref := rack.LeaseReference{Namespace: "acme", Name: "build", UID: "uid"}
	node := &rack.MacNode{}
	node.Status.ReleasingSince, node.Status.Scrub = &floor, &rack.ScrubReport{LeaseUID: "earlier"}
	node.Status.Conditions = []metav1.Condition{{Type: rack.MacNodeScrubbed, Status: metav1.ConditionTrue}}

	Assign(node, lease, ref)
	assert.Equal(t, &ref, node.Status.LeaseRef)
	assert.Equal(t, &floor, node.Status.EarliestReleaseAt)
	assert.Equal(t, lease.Spec.PrefetchImages, node.Status.PrefetchImages)
	assert.Equal(t, lease.Spec.Caches, node.Status.Caches)
	assert.Nil(t, node.Status.ReleasingSince)
	assert.Nil(t, node.Status.Scrub, "that of an earlier lease")
	assert.Nil(t, meta.FindStatusCondition(node.Status.Conditions, rack.MacNodeScrubbed))

	node.Status.ReleasingSince = &floor
	Unassign(node)
	assert.Equal(t, rack.MacNodeStatus{Conditions: node.Status.Conditions}, node.Status)
}
