// Package node keeps the taints of Kubernetes Nodes in step with their MacNodes. The Node of a
// leased Mac admits pods of its tenant only; the Node of any other Mac admits no pods.
package node

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/controller"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/controllers/shared"
	racklisters "macrack.io/macrack/pkg/generated/listers/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// New returns the controller. Its keys are names of Nodes.
func New(deps *shared.Dependencies) *controller.Controller {
	c := controller.New("node-taints", deps.Clock, newReconciler(deps).reconcile)
	_, _ = deps.Nodes.Informer().AddEventHandler(controller.Handlers(func(_, after *corev1.Node) {
		if after != nil {
			c.Enqueue(after.Name)
		}
	}))
	_, _ = deps.MacNodes.Informer().AddEventHandler(controller.Handlers(func(before, after *rackv1alpha1.MacNode) {
		c.Enqueue(controller.Newest(before, after).Name)
	}))
	return c
}

type reconciler struct {
	nodes  corelisters.NodeLister
	macs   racklisters.MacNodeLister
	client corev1client.NodesGetter
}

func newReconciler(deps *shared.Dependencies) *reconciler {
	return &reconciler{nodes: deps.Nodes.Lister(), macs: deps.MacNodes.Lister(), client: deps.Core.CoreV1()}
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Time, error) {
	node, err := r.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	mac, err := r.macs.Get(name)
	if apierrors.IsNotFound(err) {
		mac = nil
		if !predicates.IsMac(node) {
			return time.Time{}, nil
		}
	} else if err != nil {
		return time.Time{}, err
	}
	return time.Time{}, r.setTaint(ctx, node, wanted(mac))
}

// wanted returns MacRack's taint for the Node of mac; that of an unleased Mac if mac is nil.
func wanted(mac *rackv1alpha1.MacNode) corev1.Taint {
	if mac == nil || mac.Status.LeaseRef == nil || predicates.Scrubbed(mac, mac.Status.LeaseRef.UID) {
		return rules.UnleasedTaint()
	}
	return rules.TenantTaint(mac.Status.LeaseRef.Namespace)
}

// setTaint replaces all of MacRack's taints of node with one, in one write.
func (r *reconciler) setTaint(ctx context.Context, node *corev1.Node, taint corev1.Taint) error {
	if rules.HasOnlyTaint(node.Spec.Taints, taint) {
		return nil
	}
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), rules.IsTenancyTaint)
	return r.patchTaints(ctx, node, append(taints, taint))
}

// patchTaints replaces the taints of node, unless these have changed since it was read. Agents
// report the status of a Node at the same time; a condition on the resource version would fail for
// that.
func (r *reconciler) patchTaints(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	patch, err := json.Marshal([]operation{
		{"test", "/metadata/uid", node.UID},
		{"test", "/spec/taints", node.Spec.Taints},
		{"add", "/spec/taints", taints}, // also replaces
	})
	if err != nil {
		return err
	}
	if _, err := r.client.Nodes().Patch(ctx, node.Name, types.JSONPatchType, patch, shared.PatchOptions); err != nil {
		return err
	}
	klog.FromContext(ctx).V(1).Info("Node taints set", "node", klog.KObj(node), "taints", rules.FormatTaints(taints))
	return nil
}

// operation is an operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}
