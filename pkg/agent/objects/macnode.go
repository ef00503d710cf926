package objects

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	rackinformers "macrack.io/macrack/pkg/generated/informers/externalversions/rack/v1alpha1"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
)

// MacNode is the MacNode of this Mac.
type MacNode struct {
	// Name is the name of the MacNode and of the Node.
	Name string

	client versioned.Interface
	lister racklisters.MacNodeLister
	// written holds the agent's write until the cache has it.
	written cache.MutationCache
	clock   clock.PassiveClock
}

// NewMacNode returns the MacNode of that name.
func NewMacNode(name string, client versioned.Interface, informer rackinformers.MacNodeInformer, c clock.PassiveClock) *MacNode {
	return &MacNode{
		Name: name, client: client, lister: informer.Lister(), clock: c,
		written: cache.NewIntegerResourceVersionMutationCache(klog.Background(), informer.Informer().GetStore(), nil, ownWrites, false),
	}
}

// Cached returns the MacNode from the cache.
func (m *MacNode) Cached() (*rackv1alpha1.MacNode, error) { return m.lister.Get(m.Name) }

// Newest returns the MacNode from the cache, or the agent's own write if that is newer. It returns
// nil if the MacNode does not exist.
func (m *MacNode) Newest() (*rackv1alpha1.MacNode, error) {
	obj, exists, err := m.written.GetByKey(m.Name)
	if err != nil || !exists {
		return nil, err
	}
	return obj.(*rackv1alpha1.MacNode), nil
}

// Live returns the MacNode from the API, because the cache may be stale.
func (m *MacNode) Live(ctx context.Context) (*rackv1alpha1.MacNode, error) {
	return m.client.RackV1alpha1().MacNodes().Get(ctx, m.Name, metav1.GetOptions{})
}

// PatchStatus patches the status.
func (m *MacNode) PatchStatus(ctx context.Context, patch []byte) error {
	written, err := m.client.RackV1alpha1().MacNodes().Patch(ctx, m.Name, apiclient.PatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		m.Wrote(written)
	}
	return err
}

// Wrote remembers the MacNode as the agent wrote it.
func (m *MacNode) Wrote(macNode *rackv1alpha1.MacNode) { m.written.Mutation(macNode) }

// SetCondition sets a condition of the MacNode.
func (m *MacNode) SetCondition(macNode *rackv1alpha1.MacNode, name string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&macNode.Status.Conditions, metav1.Condition{
		Type: name, Status: status, Reason: reason, Message: message,
		ObservedGeneration: macNode.Generation, LastTransitionTime: Now(m.clock),
	})
}

// MacNodeRef refers to a MacNode in an event.
func MacNodeRef(macNode *rackv1alpha1.MacNode) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: rackv1alpha1.SchemeGroupVersion.String(), Kind: "MacNode", Name: macNode.Name, UID: macNode.UID,
	}
}
