package macnodelease

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/testutil"
)

// A scenario reconciles one lease, and expects these calls and Events.
type scenario struct {
	name       string
	lease      *rackv1alpha1.MacNodeLease
	unreported bool // the lease has no condition MacReady yet
	instances  []*instancev1alpha1.MacOSInstance
	mac        *rackv1alpha1.MacNode
	node       *corev1.Node
	nodeNow    *corev1.Node // at the server, if it is different from the cache
	fail       error        // the error of every write
	calls      []string
	due        time.Time
	err        error
}

func (s scenario) run(t *testing.T) {
	if s.mac != nil && !s.unreported && meta.FindStatusCondition(s.lease.Status.Conditions, "MacReady") == nil {
		s.lease.Status.Conditions = append(s.lease.Status.Conditions, predicates.MacReady(s.mac))
	}
	if s.nodeNow == nil {
		s.nodeNow = s.node
	}
	original := s.lease.DeepCopy()
	c := testutil.NewCluster(t, noon)
	c.Add(s.lease, s.mac)
	c.Cache(s.node)
	c.Serve(s.nodeNow)
	for _, instance := range s.instances {
		c.Cache(instance)
	}
	var reported []metav1.Condition
	if s.lease != nil {
		reported = s.lease.Status.Conditions
	}
	c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
		if action.Matches("get", "nodes") {
			return "read " + testutil.Name(action), nil
		}
		call := describeCall(action, object, reported)
		if lease, ok := object.(*rackv1alpha1.MacNodeLease); ok {
			reported = append(reported, lease.Status.Conditions...)
		}
		return call, s.fail
	})

	due, err := newLifecycle(c.Dependencies).reconcile(t.Context(), "acme/a")
	if s.err == nil {
		require.NoError(t, err)
		assert.Equal(t, s.due, due)
	} else {
		require.ErrorContains(t, err, s.err.Error())
	}
	calls := c.Calls
	stops := slices.IndexFunc(append(calls, ""), func(call string) bool { return !strings.HasPrefix(call, "stop ") })
	slices.Sort(calls[:stops]) // the cache has no order
	for _, event := range c.Events.Drain() {
		calls = append(calls, "event "+strings.Fields(event)[1])
	}
	assert.Equal(t, s.calls, calls)
	assert.Equal(t, original, s.lease, "the cache was changed")
}

// describeCall returns a write as a short sentence, with the conditions that are not reported yet.
func describeCall(action clienttesting.Action, object runtime.Object, reported []metav1.Condition) string {
	switch object := object.(type) {
	case *rackv1alpha1.MacNodeLease:
		call := "status " + string(object.Status.Phase) + " " + object.Status.EarliestReleaseAt.UTC().Format(time.RFC3339)
		for _, c := range object.Status.Conditions {
			if !slices.ContainsFunc(reported, func(known metav1.Condition) bool { return equality.Semantic.DeepEqual(known, c) }) {
				call += ": " + c.Type + "=" + string(c.Status) + ": " + c.Reason + ": " + c.Message
			}
		}
		return call
	case *rackv1alpha1.MacNodeLeaseRelease:
		return strings.Join(append([]string{"release", testutil.Name(action)}, object.NodeTaints...), " ")
	case *instancev1alpha1.MacOSInstanceStop:
		return "stop " + testutil.Name(action) + " " + object.Reason
	}
	return action.GetVerb() + " " + testutil.Name(action)
}

func TestLeaseWithoutAMacIsIgnored(t *testing.T) {
	for _, tt := range []scenario{
		{name: "gone"},
		{name: "pending", lease: olderLease()},
		{name: "released", lease: olderLease(boundAt(30*time.Hour), leasePhase(rackv1alpha1.MacNodeLeaseReleased))},
	} {
		t.Run(tt.name, tt.run)
	}
}
