package race

import (
	"context"
	"fmt"
	"math/rand/v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"k8s.io/apimachinery/pkg/api/meta"

	"macrack.io/macrack/test/race/check"
)

func createNode(w *worker, ctx context.Context, v view) {
	node := &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: v.name}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: pick(v.serials), ClassName: "base"}}
	node, err := w.client().RackV1alpha1().MacNodes().Create(asAdmin(ctx), node, metav1.CreateOptions{})
	if w.tried("node/create", err) == success {
		w.wrote(node)
		v.sawNode(node)
	} else if v.node == nil {
		w.lookAtNode(ctx, v.mac)
	}
}

func deleteNode(w *worker, ctx context.Context, v view) {
	_, err := remove[*rackv1alpha1.MacNode](asAdmin(ctx), w.client().RackV1alpha1().RESTClient(), "macnodes", "", v.name, check.NodeKey(v.name), w)
	switch w.tried("node/delete", err) {
	case success:
		v.lostNode("")
	case unknown:
		w.lookAtNode(ctx, v.mac)
	}
}

// writeNode writes the status of a MacNode from the last known state.
func (w *worker) writeNode(ctx context.Context, kind string, v view, change func(*rackv1alpha1.MacNodeStatus)) {
	if v.node == nil {
		w.lookAtNode(ctx, v.mac)
		return
	}
	node := v.node.DeepCopy()
	change(&node.Status)
	node, err := w.client().RackV1alpha1().MacNodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	if w.tried(kind, err) == success {
		w.wrote(node)
		v.sawNode(node)
		return
	}
	w.lookAtNode(ctx, v.mac)
}

func report(w *worker, ctx context.Context, v view) {
	w.writeNode(asAgent(ctx, v.name), "node/report", v, func(s *rackv1alpha1.MacNodeStatus) {
		s.Hardware = &rackv1alpha1.MacNodeHardware{ModelIdentifier: "Mac16,10", SerialNumber: v.node.Spec.SerialNumber, AgentVersion: fmt.Sprint(rand.IntN(1000))}
		if s.BootID == "" {
			s.BootID = "boot-0"
		}
		// An agent that tries to write fields of other owners must have no effect.
		s.RunningVMs, s.LeaseRef, s.Phase = 0, nil, rackv1alpha1.MacNodeAvailable
	})
}

func quarantine(w *worker, ctx context.Context, v view) {
	if rand.IntN(4) > 0 {
		return
	}
	w.writeNode(asAgent(ctx, v.name), "node/quarantine", v, func(s *rackv1alpha1.MacNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonKernelQuotaStuck})
	})
}

func endQuarantine(w *worker, ctx context.Context, v view) {
	if rand.IntN(2) == 0 {
		w.writeNode(asAdmin(ctx), "node/recover", v, func(s *rackv1alpha1.MacNodeStatus) { s.Quarantine = nil })
		return
	}
	w.writeNode(asAgent(ctx, v.name), "node/recover", v, func(s *rackv1alpha1.MacNodeStatus) {
		s.BootID = fmt.Sprintf("boot-%d", rand.IntN(1000000))
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionTrue, Reason: "Rebooted"})
	})
}

func scrub(w *worker, ctx context.Context, v view) {
	w.writeNode(asAgent(ctx, v.name), "node/scrub", v, func(s *rackv1alpha1.MacNodeStatus) {
		s.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: v.lease.UID, FinishedAt: metav1.NewTime(w.clock.Now())}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue, Reason: "Scrubbed"})
	})
}
