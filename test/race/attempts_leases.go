package race

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/test/race/check"
)

func createLease(w *worker, ctx context.Context, v view) {
	if w.pending.len() > 40 {
		withdraw(w, ctx, v)
		return
	}
	tenant := pick(w.tenants)
	lease := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: fmt.Sprintf("l%d", w.names.Add(1))},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
	}
	if rand.IntN(6) == 0 {
		lease.Spec.SerialNumber = pick(v.serials)
	}
	lease, err := w.client().RackV1alpha1().MacNodeLeases(tenant).Create(asTenant(ctx, tenant), lease, metav1.CreateOptions{})
	if w.tried("lease/create", err) == success {
		w.wrote(lease)
		w.pending.add(lease)
	}
}

// bind binds one of few leases to the Mac, so that other clients are likely to bind the same one.
func bind(w *worker, ctx context.Context, v view) {
	lease, ok := w.pending.at(rand.IntN(4))
	if !ok {
		createLease(w, ctx, v)
		return
	}
	w.bind(ctx, "lease/bind", v.mac, lease)
}

// rebind binds the Mac's lease again, to any Mac.
func rebind(w *worker, ctx context.Context, v view) {
	w.bind(ctx, "lease/rebind", pick(w.macs), v.lease)
}

func (w *worker) bind(ctx context.Context, kind string, m *mac, lease *rackv1alpha1.MacNodeLease) {
	start := time.Now()
	_, err := w.client().RackV1alpha1().MacNodeLeases(lease.Namespace).Bind(asControllers(ctx), lease.Name, &rackv1alpha1.MacNodeLeaseBinding{NodeName: m.name}, metav1.CreateOptions{})
	item := lease.Namespace + "/" + lease.Name
	outcome := w.tried(kind, err)
	if w.watched(m.name) {
		if outcome == refusal && strings.Contains(err.Error(), "belongs to another lease") {
			w.history(check.NodeKey(m.name), start, check.Full, nil, item)
		} else {
			w.history(check.NodeKey(m.name), start, check.Take, err, item)
		}
	}
	switch outcome {
	case success:
		w.ack(check.Bound, keyOf(lease), m.name)
	case refusal:
		if rand.IntN(8) > 0 {
			return
		}
	case conflict, unsent:
		return
	}
	w.lookAtLease(ctx, lease)
}

// withdraw deletes a lease without a known Mac.
func withdraw(w *worker, ctx context.Context, v view) {
	if lease, ok := w.pending.at(rand.IntN(8)); ok {
		w.deleteLease(ctx, "lease/withdraw", lease)
	}
}

func deleteLease(w *worker, ctx context.Context, v view) { w.deleteLease(ctx, "lease/delete", v.lease) }

func (w *worker) deleteLease(ctx context.Context, kind string, lease *rackv1alpha1.MacNodeLease) {
	left, err := remove[*rackv1alpha1.MacNodeLease](asTenant(ctx, lease.Namespace), w.client().RackV1alpha1().RESTClient(), "macnodeleases", lease.Namespace, lease.Name, keyOf(lease), w)
	switch w.tried(kind, err) {
	case success:
		if left == nil || gone(left) {
			w.lostLease(lease)
		} else {
			w.sawLease(left)
		}
	case unknown, refusal:
		w.lookAtLease(ctx, lease)
	}
}

func deleteLeases(w *worker, ctx context.Context, v view) {
	if rand.IntN(3) > 0 {
		return
	}
	err := w.client().RackV1alpha1().MacNodeLeases(v.lease.Namespace).DeleteCollection(asTenant(ctx, v.lease.Namespace), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "status.nodeName=" + v.name})
	w.tried("lease/deletecollection", err)
	w.lookAtLease(ctx, v.lease)
}

func lengthen(w *worker, ctx context.Context, v view) {
	hours := 24 + rand.IntN(3)
	patch := fmt.Sprintf(`{"spec":{"minimumDuration":"%dh"}}`, hours)
	lease, err := w.client().RackV1alpha1().MacNodeLeases(v.lease.Namespace).Patch(asTenant(ctx, v.lease.Namespace), v.lease.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if w.tried("lease/lengthen", err) == success {
		w.wrote(lease)
		w.sawLease(lease)
	}
}

// writeLease writes the status of the Mac's lease from the last known state.
func (w *worker) writeLease(ctx context.Context, kind string, v view, change func(*rackv1alpha1.MacNodeLeaseStatus)) {
	lease := v.lease.DeepCopy()
	change(&lease.Status)
	lease, err := w.client().RackV1alpha1().MacNodeLeases(lease.Namespace).UpdateStatus(asControllers(ctx), lease, metav1.UpdateOptions{})
	if w.tried(kind, err) == success {
		w.wrote(lease)
		w.sawLease(lease)
		return
	}
	w.lookAtLease(ctx, v.lease)
}

// tamper tries to move a floor, and to free a used slot.
func tamper(w *worker, ctx context.Context, v view) {
	w.writeLease(ctx, "lease/tamper", v, func(s *rackv1alpha1.MacNodeLeaseStatus) {
		s.Instances = nil
		if rand.IntN(2) == 0 && s.EarliestReleaseAt != nil {
			earlier := metav1.NewTime(s.EarliestReleaseAt.Add(-time.Hour))
			s.EarliestReleaseAt = &earlier
		}
	})
}

func endHold(w *worker, ctx context.Context, v view) {
	w.writeLease(ctx, "lease/end", v, func(s *rackv1alpha1.MacNodeLeaseStatus) { s.Phase = rackv1alpha1.MacNodeLeaseReleasing })
}

func release(w *worker, ctx context.Context, v view) {
	start := time.Now()
	_, err := w.client().RackV1alpha1().MacNodeLeases(v.lease.Namespace).Release(asControllers(ctx), v.lease.Name, &rackv1alpha1.MacNodeLeaseRelease{NodeTaints: []string{unleased}}, metav1.CreateOptions{})
	outcome := w.tried("lease/release", err)
	if w.watched(v.lease.Status.NodeName) {
		w.history(check.NodeKey(v.lease.Status.NodeName), start, check.Drop, err, v.lease.Namespace+"/"+v.lease.Name)
	}
	switch outcome {
	case success:
		w.ack(check.Released, keyOf(v.lease), "")
		w.lostLease(v.lease)
		w.lookAtNode(ctx, v.mac)
	case unknown:
		w.lookAtLease(ctx, v.lease)
		w.lookAtNode(ctx, v.mac)
	case refusal:
		if rand.IntN(4) == 0 {
			w.lookAtLease(ctx, v.lease)
			w.lookAtNode(ctx, v.mac)
		}
	}
}

func annotateLease(w *worker, ctx context.Context, v view) {
	for range burst {
		written, err := w.client().RackV1alpha1().MacNodeLeases(v.lease.Namespace).Patch(asTenant(ctx, v.lease.Namespace), v.lease.Name, types.MergePatchType, annotation(), metav1.PatchOptions{})
		if w.tried("lease/annotate", err) != success {
			return
		}
		w.wrote(written)
	}
}
