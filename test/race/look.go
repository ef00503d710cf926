package race

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/race/check"
)

// watched reports whether the history of a lease or a Mac is checked.
func (w *worker) watched(name string) bool { return sampled(name, w.Sample) }

func read(w *worker, ctx context.Context, v view) {
	if v.lease != nil && rand.IntN(2) == 0 {
		w.lookAtLease(ctx, v.lease)
		return
	}
	w.lookAtNode(ctx, v.mac)
}

// fresh returns a context for a read after a request that may have been cancelled.
func fresh(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(asAdmin(context.WithoutCancel(ctx)), 10*time.Second)
}

func (w *worker) lookAtNode(ctx context.Context, m *mac) {
	ctx, cancel := fresh(ctx)
	defer cancel()
	start := time.Now()
	node, err := w.client().RackV1alpha1().MacNodes().Get(ctx, m.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.lostNode("")
	}
	if err != nil {
		return
	}
	if w.watched(m.name) {
		items := []string{}
		if ref := node.Status.LeaseRef; ref != nil {
			items = append(items, ref.Namespace+"/"+ref.Name)
		}
		w.history(check.NodeKey(m.name), start, check.Read, nil, items...)
	}
	m.sawNode(node)
	if ref := node.Status.LeaseRef; ref != nil {
		if v := m.view(); v.lease == nil || v.lease.UID != ref.UID {
			w.lookAtLease(ctx, &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}})
		}
	}
}

func (w *worker) lookAtLease(ctx context.Context, known *rackv1alpha1.MacNodeLease) {
	ctx, cancel := fresh(ctx)
	defer cancel()
	start := time.Now()
	lease, err := w.client().RackV1alpha1().MacNodeLeases(known.Namespace).Get(ctx, known.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		w.lostLease(known)
	}
	if err != nil {
		return
	}
	if w.watched(lease.Name) {
		items := []string{}
		for _, slot := range lease.Status.Instances {
			items = append(items, lease.Namespace+"/"+slot.Name)
		}
		w.history(keyOf(lease), start, check.Read, nil, items...)
	}
	w.sawLease(lease)
}

func (w *worker) sawLease(lease *rackv1alpha1.MacNodeLease) {
	if lease.Status.NodeName == "" {
		return
	}
	w.pending.drop(func(l *rackv1alpha1.MacNodeLease) bool { return l.Namespace == lease.Namespace && l.Name == lease.Name })
	if m := w.byName[lease.Status.NodeName]; m != nil {
		w.leftovers.add(m.sawLease(lease)...)
	}
}

func (w *worker) lostLease(lease *rackv1alpha1.MacNodeLease) {
	w.pending.drop(func(l *rackv1alpha1.MacNodeLease) bool { return l.Namespace == lease.Namespace && l.Name == lease.Name })
	for _, m := range w.macs {
		w.leftovers.add(m.lostLease(lease.Name)...)
	}
}

func (w *worker) lookAtInstance(ctx context.Context, m *mac, known *instancev1alpha1.MacOSInstance) *instancev1alpha1.MacOSInstance {
	ctx, cancel := fresh(ctx)
	defer cancel()
	i, err := w.client().InstanceV1alpha1().MacOSInstances(known.Namespace).Get(ctx, known.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.lostInstance(known.Name)
	}
	if err != nil {
		return nil
	}
	m.sawInstance(i)
	return i
}

func (w *worker) lookAtInstances(ctx context.Context, v view) {
	if v.lease == nil {
		return
	}
	ctx, cancel := fresh(ctx)
	defer cancel()
	list, err := w.client().InstanceV1alpha1().MacOSInstances(v.lease.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.leaseName=" + v.lease.Name})
	if err != nil {
		return
	}
	found := map[string]bool{}
	for n := range list.Items {
		found[list.Items[n].Name] = true
		v.sawInstance(&list.Items[n])
	}
	for _, i := range v.instances {
		if !found[i.Name] {
			v.lostInstance(i.Name)
		}
	}
}

// sweep deletes an instance that its lease has left behind.
func (w *worker) sweep(ctx context.Context) bool {
	i, ok := w.leftovers.take(rand.IntN(16))
	if !ok {
		return false
	}
	m := &mac{} // without a lease
	if i = w.lookAtInstance(ctx, m, i); i != nil {
		w.finish(ctx, m, i)
		w.leftovers.add(i)
	}
	return true
}
