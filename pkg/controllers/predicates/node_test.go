package predicates

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestAdmits(t *testing.T) {
	other := corev1.Taint{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}
	soft := rules.TenantTaint("acme")
	soft.Effect = corev1.TaintEffectPreferNoSchedule
	for _, tt := range []struct {
		name             string
		taints           []corev1.Taint
		tenant, unleased bool
	}{
		{name: "no taints"},
		{name: "the tenant's", taints: []corev1.Taint{other, rules.TenantTaint("acme")}, tenant: true},
		{name: "another's", taints: []corev1.Taint{rules.TenantTaint("globex")}},
		{name: "both", taints: []corev1.Taint{rules.TenantTaint("acme"), rules.UnleasedTaint()}},
		{name: "the tenant's, softly", taints: []corev1.Taint{soft}},
		{name: "unleased", taints: []corev1.Taint{rules.UnleasedTaint(), other}, unleased: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: tt.taints}}
			assert.Equal(t, tt.tenant, AdmitsTenant(node, "acme"))
			assert.Equal(t, tt.unleased, rules.HasOnlyTaint(node.Spec.Taints, rules.UnleasedTaint()))
		})
	}
	assert.Equal(t, []string{"macrack.io/tenant=acme:NoSchedule", "macrack.io/unleased:NoSchedule"},
		rules.FormatTaints([]corev1.Taint{rules.UnleasedTaint(), rules.TenantTaint("acme")}))
}

func TestIsAvailable(t *testing.T) {
	now := metav1.Now()
	for _, tt := range []struct {
		name string
		mac  rackv1alpha1.MacNode
		want bool
	}{
		{"available", rackv1alpha1.MacNode{Status: rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable}}, true},
		{"offline", rackv1alpha1.MacNode{Status: rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeOffline}}, false},
		{"leased", rackv1alpha1.MacNode{Status: rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable, LeaseRef: &rackv1alpha1.LeaseReference{}}}, false},
		{"going", rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Status: rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable}}, false},
	} {
		assert.Equal(t, tt.want, IsAvailable(&tt.mac), tt.name)
	}
}

func TestBelongsTo(t *testing.T) {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "build", UID: "u"}}
	instance := func(namespace, lease string, owner types.UID) *instancev1alpha1.MacOSInstance {
		return &instancev1alpha1.MacOSInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, OwnerReferences: []metav1.OwnerReference{{UID: owner}}},
			Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: lease},
		}
	}
	assert.True(t, BelongsTo(instance("acme", "build", "u"), lease))
	assert.False(t, BelongsTo(instance("globex", "build", "u"), lease))
	assert.False(t, BelongsTo(instance("acme", "test", "u"), lease))
	assert.False(t, BelongsTo(instance("acme", "build", "earlier"), lease))
}
