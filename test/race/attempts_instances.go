package race

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/test/race/check"
)

func createInstance(w *worker, ctx context.Context, v view) {
	name := fmt.Sprintf("i%d", w.names.Add(1))
	if rand.IntN(8) == 0 {
		name = fmt.Sprintf("%s-%d", v.lease.Name, rand.IntN(3)) // another client may choose it
	}
	tenant := v.lease.Namespace
	if rand.IntN(100) == 0 {
		tenant = pick(w.tenants) // a tenant that may not have such a lease
	}
	i := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name},
		Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: v.lease.Name, ClassName: "small", ImageName: pick(w.images)},
	}
	start := time.Now()
	created, err := w.client().InstanceV1alpha1().MacOSInstances(tenant).Create(asTenant(ctx, tenant), i, metav1.CreateOptions{})
	outcome := w.tried("instance/create", err)
	if tenant == v.lease.Namespace && w.watched(v.lease.Name) {
		item := tenant + "/" + name
		if outcome == refusal && strings.Contains(err.Error(), "has 2 of 2 instances") {
			w.history(keyOf(v.lease), start, check.Full, nil, item)
		} else {
			w.history(keyOf(v.lease), start, check.Take, err, item)
		}
	}
	switch outcome {
	case success:
		w.wrote(created)
		v.sawInstance(created)
	case unknown:
		w.lookAtInstance(ctx, v.mac, i)
	case refusal:
		if strings.Contains(err.Error(), "image") {
			w.restoreImage(ctx, i.Spec.ImageName)
		}
		if rand.IntN(50) == 0 {
			w.lookAtInstances(ctx, v)
		}
	}
}

// writeInstance writes the status of an instance from the last known or the current state.
func (w *worker) writeInstance(ctx context.Context, kind string, v view, i *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus), patch string) {
	start := time.Now()
	instances := w.client().InstanceV1alpha1().MacOSInstances(i.Namespace)
	var err error
	var written *instancev1alpha1.MacOSInstance
	if patch != "" && rand.IntN(2) == 0 {
		written, err = instances.Patch(ctx, i.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	} else {
		known := i.DeepCopy()
		change(&known.Status)
		written, err = instances.UpdateStatus(ctx, known, metav1.UpdateOptions{})
	}
	w.wroteInstance(ctx, kind, v.mac, i, written, start, err)
}

// wroteInstance records the outcome of a write that may have ended an instance.
func (w *worker) wroteInstance(ctx context.Context, kind string, m *mac, i, written *instancev1alpha1.MacOSInstance, start time.Time, err error) {
	outcome := w.tried(kind, err)
	if w.watched(i.Spec.LeaseName) && (outcome == unknown || outcome == success && (written == nil || over(written))) {
		w.history(check.LeaseKey(i.Namespace, i.Spec.LeaseName), start, check.Drop, err, i.Namespace+"/"+i.Name)
	}
	if outcome == success && written != nil {
		w.wrote(written)
		m.sawInstance(written)
		return
	}
	if outcome != unsent {
		w.lookAtInstance(ctx, m, i)
	}
}

// identify gives an instance an identity that other clients are likely to choose now.
func identify(w *worker, ctx context.Context, v view) {
	i := pickInstance(v.live, func(i *instancev1alpha1.MacOSInstance) bool {
		return i.Status.MachineID == "" && i.Status.StopRequest == nil
	})
	identity := func() int {
		return (int(time.Since(w.began)/(200*time.Millisecond))*4 + rand.IntN(8)) % (10 * len(w.macs))
	}
	n, m := identity(), identity()
	if rand.IntN(3) > 0 {
		m = n
	}
	id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "machine-%05d", n))
	address := fmt.Sprintf("02:00:00:00:%02x:%02x", m/256, m%256)
	w.writeInstance(asAgent(ctx, v.name), "instance/identify", v, i, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.MachineID, s.MACAddress = instancev1alpha1.MacOSInstanceStarting, id, address
	}, fmt.Sprintf(`{"status":{"phase":"Starting","machineID":%q,"macAddress":%q}}`, id, address))
}

func run(w *worker, ctx context.Context, v view) {
	i := pickInstance(v.live, func(i *instancev1alpha1.MacOSInstance) bool {
		return i.Status.Phase == instancev1alpha1.MacOSInstanceStarting
	})
	w.writeInstance(asAgent(ctx, v.name), "instance/run", v, i, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstanceRunning
	}, `{"status":{"phase":"Running"}}`)
}

func stopped(w *worker, ctx context.Context, v view) {
	phase := pick([]instancev1alpha1.MacOSInstancePhase{instancev1alpha1.MacOSInstanceStopped, instancev1alpha1.MacOSInstanceFailed})
	w.writeInstance(asAgent(ctx, v.name), "instance/stopped", v, pick(v.live), func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = phase
	}, fmt.Sprintf(`{"status":{"phase":%q}}`, phase))
}

// abandon reports as the controllers that an instance has ended, which they cannot know if it may
// have run.
func abandon(w *worker, ctx context.Context, v view) {
	w.writeInstance(asControllers(ctx), "instance/abandon", v, pick(v.live), func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase = instancev1alpha1.MacOSInstanceStopped
	}, `{"status":{"phase":"Stopped"}}`)
}

func stop(w *worker, ctx context.Context, v view) {
	i := pick(v.live)
	start := time.Now()
	_, err := w.client().InstanceV1alpha1().MacOSInstances(i.Namespace).Stop(asTenant(ctx, i.Namespace), i.Name, &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	outcome := w.tried("instance/stop", err)
	if outcome == success {
		w.ack(check.Stopped, keyOf(i), "")
	}
	if w.watched(i.Spec.LeaseName) && outcome == success {
		err = context.Canceled // the answer does not show whether it has ended
	}
	if w.watched(i.Spec.LeaseName) {
		w.history(check.LeaseKey(i.Namespace, i.Spec.LeaseName), start, check.Drop, err, i.Namespace+"/"+i.Name)
	}
	if outcome != unsent {
		w.lookAtInstance(ctx, v.mac, i)
	}
}

func deleteInstance(w *worker, ctx context.Context, v view) {
	w.deleteInstance(ctx, v.mac, pick(v.instances))
}

func (w *worker) deleteInstance(ctx context.Context, m *mac, i *instancev1alpha1.MacOSInstance) {
	start := time.Now()
	left, err := remove[*instancev1alpha1.MacOSInstance](asTenant(ctx, i.Namespace), w.client().InstanceV1alpha1().RESTClient(), "macosinstances", i.Namespace, i.Name, keyOf(i), w)
	outcome := w.tried("instance/delete", err)
	if w.watched(i.Spec.LeaseName) && (outcome == unknown || outcome == success && (left == nil || over(left))) {
		w.history(check.LeaseKey(i.Namespace, i.Spec.LeaseName), start, check.Drop, err, i.Namespace+"/"+i.Name)
	}
	switch outcome {
	case success:
		if left == nil || gone(left) {
			m.lostInstance(i.Name)
		} else {
			m.sawInstance(left)
		}
	case unknown, refusal:
		w.lookAtInstance(ctx, m, i)
	}
}

// finish deletes an instance that has ended.
func finish(w *worker, ctx context.Context, v view) { w.finish(ctx, v.mac, pick(v.ended)) }

func (w *worker) finish(ctx context.Context, m *mac, i *instancev1alpha1.MacOSInstance) {
	if i.DeletionTimestamp == nil {
		w.deleteInstance(ctx, m, i)
		return
	}
	w.unfinalize(ctx, m, i)
}

// unfinalize tries to delete an instance that has not ended.
func unfinalize(w *worker, ctx context.Context, v view) { w.unfinalize(ctx, v.mac, pick(v.live)) }

func (w *worker) unfinalize(ctx context.Context, m *mac, i *instancev1alpha1.MacOSInstance) {
	written, err := w.client().InstanceV1alpha1().MacOSInstances(i.Namespace).Patch(asControllers(ctx), i.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if w.tried("instance/unfinalize", err) == success {
		w.wrote(written)
		m.sawInstance(written)
		return
	}
	w.lookAtInstance(ctx, m, i)
}

// deleteInstances deletes all instances of a lease, unless the history of its slots is checked: the
// answer does not name the deleted instances.
func deleteInstances(w *worker, ctx context.Context, v view) {
	i := pick(v.instances)
	if w.watched(i.Spec.LeaseName) {
		return
	}
	err := w.client().InstanceV1alpha1().MacOSInstances(i.Namespace).DeleteCollection(asTenant(ctx, i.Namespace), metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.leaseName=" + i.Spec.LeaseName})
	w.tried("instance/deletecollection", err)
	w.lookAtInstances(ctx, v)
}

// burst is the number of metadata writes in one attempt.
const burst = 4

func annotateInstance(w *worker, ctx context.Context, v view) {
	i := pick(v.live)
	for range burst {
		written, err := w.client().InstanceV1alpha1().MacOSInstances(i.Namespace).Patch(asTenant(ctx, i.Namespace), i.Name, types.MergePatchType, annotation(), metav1.PatchOptions{})
		if w.tried("instance/annotate", err) != success {
			w.lookAtInstance(ctx, v.mac, i)
			return
		}
		w.wrote(written)
		v.mac.sawInstance(written)
	}
}

func annotation() []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{"flood":"%d"}}}`, rand.Int64())
}
