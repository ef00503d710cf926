package node

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
	"macrack.io/macrack/pkg/rules"
)

func TestReconcile(t *testing.T) {
	var (
		unleased = rules.UnleasedTaint()
		acme     = rules.TenantTaint("acme")
		globex   = rules.TenantTaint("globex")
		notReady = corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute}
		now      = metav1.Now()
	)
	leased := func() *rackv1alpha1.MacNode {
		mac := &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
		mac.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build", UID: "lease-uid"}
		return mac
	}
	releasing := func(change func(*rackv1alpha1.MacNode)) *rackv1alpha1.MacNode {
		mac := leased()
		mac.Status.ReleasingSince = &now
		mac.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: "lease-uid", FinishedAt: now}
		mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue}}
		if change != nil {
			change(mac)
		}
		return mac
	}
	free := &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}

	for _, tt := range []struct {
		name   string
		mac    *rackv1alpha1.MacNode
		noNode bool
		notMac bool
		taints []corev1.Taint
		// steps are the taints after each patch.
		steps [][]corev1.Taint
	}{
		{name: "the Node does not exist", mac: leased(), noNode: true},
		{name: "the Node is no Mac", notMac: true},
		{name: "the Node is an unregistered Mac", steps: [][]corev1.Taint{{unleased}}},
		{name: "free and tainted", mac: free, taints: []corev1.Taint{notReady, unleased}},
		{name: "free and untainted", mac: free, taints: []corev1.Taint{notReady}, steps: [][]corev1.Taint{{notReady, unleased}}},
		{name: "free, with a tenant's taint", mac: free, taints: []corev1.Taint{acme}, steps: [][]corev1.Taint{{unleased}}},
		{name: "bound: the tenant's taint replaces unleased", mac: leased(), taints: []corev1.Taint{unleased, notReady},
			steps: [][]corev1.Taint{{notReady, acme}}},
		{name: "bound, with both taints", mac: leased(), taints: []corev1.Taint{unleased, acme}, steps: [][]corev1.Taint{{acme}}},
		{name: "bound and tainted", mac: leased(), taints: []corev1.Taint{acme}},
		{name: "bound, and the taint was removed", mac: leased(), steps: [][]corev1.Taint{{acme}}},
		{name: "bound, with another tenant's taint", mac: leased(), taints: []corev1.Taint{globex}, steps: [][]corev1.Taint{{acme}}},
		{name: "releasing and scrubbed: unleased replaces the tenant's taint", mac: releasing(nil), taints: []corev1.Taint{acme},
			steps: [][]corev1.Taint{{unleased}}},
		{name: "scrubbed, but not releasing", mac: releasing(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = nil }), taints: []corev1.Taint{acme}},
		{name: "releasing, a VM runs", mac: releasing(func(m *rackv1alpha1.MacNode) { m.Status.RunningVMs = 1 }), taints: []corev1.Taint{acme}},
		{name: "releasing, scrubbed of an earlier lease only", mac: releasing(func(m *rackv1alpha1.MacNode) { m.Status.Scrub.LeaseUID = "other" }), taints: []corev1.Taint{acme}},
		{name: "releasing, data remains", mac: releasing(func(m *rackv1alpha1.MacNode) { m.Status.Scrub.Remaining = []string{"disk"} }), taints: []corev1.Taint{acme}},
		{name: "releasing, the scrub failed", mac: releasing(func(m *rackv1alpha1.MacNode) { m.Status.Conditions[0].Status = metav1.ConditionFalse }), taints: []corev1.Taint{acme}},
		{name: "releasing, no scrub yet", mac: releasing(func(m *rackv1alpha1.MacNode) { m.Status.Scrub = nil }), taints: []corev1.Taint{acme}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "node-uid", ResourceVersion: "7"}}
			node.Spec.Taints = tt.taints
			if !tt.notMac {
				node.Status.Capacity = corev1.ResourceList{rules.ResourceMacOSVM: resource.MustParse("2")}
			}
			original := node.DeepCopy()
			var steps [][]corev1.Taint
			c := testutil.NewCluster(t, now.Time)
			if tt.mac != nil {
				c.Cache(tt.mac)
			}
			if !tt.noNode {
				c.Add(node)
			}
			before := node.Spec.Taints
			c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
				patched := object.(*corev1.Node)
				expected, err := json.Marshal([]operation{
					{"test", "/metadata/uid", "node-uid"}, {"test", "/spec/taints", before}, {"add", "/spec/taints", patched.Spec.Taints},
				})
				require.NoError(t, err)
				assert.JSONEq(t, string(expected), string(action.(clienttesting.PatchAction).GetPatch()))
				before = patched.Spec.Taints
				steps = append(steps, patched.Spec.Taints)
				return "", nil
			})
			r := newReconciler(c.Dependencies)
			due, err := r.reconcile(t.Context(), "mac-1")
			require.NoError(t, err)
			assert.Zero(t, due)
			assert.Equal(t, tt.steps, steps)
			assert.Equal(t, original, node, "the cache was changed")
		})
	}
}

func TestRefusedPatch(t *testing.T) {
	c := testutil.NewCluster(t, time.Now())
	c.Add(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{rules.UnleasedTaint()}}},
		&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Status: rackv1alpha1.MacNodeStatus{LeaseRef: &rackv1alpha1.LeaseReference{Namespace: "acme"}}},
	)
	refused := errors.New("refused")
	c.Record(func(action clienttesting.Action, _ runtime.Object) (string, error) { return action.GetVerb(), refused })
	r := newReconciler(c.Dependencies)
	_, err := r.reconcile(t.Context(), "mac-1")
	assert.ErrorIs(t, err, refused)
	assert.Equal(t, []string{"patch"}, c.Calls)
}

// The Node in the cache may be older than the one on the server.
func TestTaintsOfAChangedNode(t *testing.T) {
	cached := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: "node-uid", ResourceVersion: "7"}}
	for name, tt := range map[string]struct {
		taints  []corev1.Taint // in the cache
		change  func(*corev1.Node)
		refused bool
	}{
		"another status":              {change: func(n *corev1.Node) { n.Status.Phase = corev1.NodeRunning }},
		"another status, with taints": {taints: []corev1.Taint{rules.TenantTaint("globex")}, change: func(n *corev1.Node) { n.Status.Phase = corev1.NodeRunning }},
		"another taint": {change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoSchedule}}
		}, refused: true},
		"fewer taints": {taints: []corev1.Taint{rules.TenantTaint("globex")}, change: func(n *corev1.Node) { n.Spec.Taints = nil }, refused: true},
		"another Node": {change: func(n *corev1.Node) { n.UID = "other" }, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := testutil.NewCluster(t, time.Now())
			node := cached.DeepCopy()
			node.Spec.Taints = tt.taints
			changed := node.DeepCopy()
			changed.ResourceVersion = "8"
			tt.change(changed)
			c.Add(changed)
			r := newReconciler(c.Dependencies)
			err := r.setTaint(t.Context(), node, rules.UnleasedTaint())
			assert.Equal(t, tt.refused, err != nil, "%v", err)
			stored, err := r.client.Nodes().Get(t.Context(), "mac-1", metav1.GetOptions{})
			require.NoError(t, err)
			if tt.refused {
				assert.Equal(t, changed.Spec.Taints, stored.Spec.Taints)
			} else {
				assert.Contains(t, stored.Spec.Taints, rules.UnleasedTaint())
			}
		})
	}
}
