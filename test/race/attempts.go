package race

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/race/check"
)

// An attempt is one request that another client may win a race against.
type attempt struct {
	name string
	// weight is its relative frequency in the current state.
	weight func(view) int
	do     func(*worker, context.Context, view)
}

const unleased = "macrack.io/unleased:NoSchedule"

func always(n int) func(view) int { return func(view) int { return n } }

func when(n int, is func(view) bool) func(view) int {
	return func(v view) int {
		if is(v) {
			return n
		}
		return 0
	}
}

func free(v view) bool      { return v.node != nil && v.node.Status.LeaseRef == nil }
func available(v view) bool { return free(v) && v.node.Status.Phase == rackv1alpha1.MacNodeAvailable }
func leased(v view) bool    { return v.lease != nil }

func in(phases ...rackv1alpha1.MacNodeLeasePhase) func(view) bool {
	return func(v view) bool {
		for _, phase := range phases {
			if v.phase() == phase {
				return true
			}
		}
		return false
	}
}

var (
	bound     = in(rackv1alpha1.MacNodeLeaseBound)
	held      = in(rackv1alpha1.MacNodeLeaseHeld)
	releasing = in(rackv1alpha1.MacNodeLeaseReleasing)
)

// attempts are all kinds of attempts.
var attempts = []attempt{
	// Macs and their serial numbers.
	{"node/create", func(v view) int {
		if v.node == nil {
			return 60
		}
		return 1
	}, createNode},
	{"node/delete", func(v view) int {
		if free(v) {
			return 6
		}
		return 1
	}, deleteNode},
	{"node/report", func(v view) int {
		if free(v) && v.node.Status.Hardware == nil {
			return 60
		}
		return 2
	}, report},
	{"node/quarantine", when(1, func(v view) bool { return v.node != nil }), quarantine},
	{"node/recover", when(20, func(v view) bool { return v.node != nil && v.node.Status.Quarantine != nil }), endQuarantine},

	// Leases.
	{"lease/create", func(v view) int {
		if v.node != nil && v.lease == nil {
			return 8
		}
		return 1
	}, createLease},
	{"lease/bind", func(v view) int {
		switch {
		case available(v):
			return 60
		case leased(v):
			return 8
		}
		return 2
	}, bind},
	{"lease/rebind", when(3, leased), rebind},
	{"lease/withdraw", always(1), withdraw},
	{"lease/delete", when(2, bound), deleteLease},
	{"lease/delete", when(3, held), deleteLease},
	{"lease/deletecollection", when(1, bound), deleteLeases},
	{"lease/lengthen", when(1, leased), lengthen},
	{"lease/tamper", when(1, leased), tamper},
	{"lease/end", when(15, held), endHold},
	{"lease/end", when(1, bound), endHold},
	{"lease/release", when(20, releasing), release},
	{"lease/release", when(2, leased), release},
	{"node/scrub", when(15, func(v view) bool { return releasing(v) && v.node != nil && len(v.live) == 0 }), scrub},

	// Instances.
	{"instance/create", when(30, bound), createInstance},
	{"instance/create", when(30, held), createInstance},
	{"instance/create", when(8, releasing), createInstance},
	{"instance/identify", when(12, func(v view) bool { return len(v.live) > 0 }), identify},
	{"instance/run", when(10, func(v view) bool { return len(v.live) > 0 }), run},
	{"instance/stop", when(4, func(v view) bool { return len(v.live) > 0 }), stop},
	{"instance/stopped", when(8, func(v view) bool { return len(v.live) > 0 }), stopped},
	{"instance/stopped", when(40, func(v view) bool { return releasing(v) && len(v.live) > 0 }), stopped},
	{"instance/abandon", when(3, func(v view) bool { return len(v.live) > 0 }), abandon},
	{"instance/delete", when(5, func(v view) bool { return len(v.instances) > 0 }), deleteInstance},
	{"instance/delete", func(v view) int { return 4 * len(v.ended) }, finish},
	{"instance/deletecollection", when(1, func(v view) bool { return len(v.instances) > 0 }), deleteInstances},
	{"instance/unfinalize", when(1, func(v view) bool { return len(v.live) > 0 }), unfinalize},

	// Writes of metadata must not block other requests.
	{"instance/annotate", when(6, func(v view) bool { return len(v.live) > 0 }), annotateInstance},
	{"lease/annotate", when(6, leased), annotateLease},

	// Images.
	{"image/delete", always(1), deleteImage},

	// Reads are compared with writes before and after. They do not count as attempts.
	{"read", always(4), read},
}

func (w *worker) attempt(ctx context.Context, v view) {
	total := 0
	weights := make([]int, len(attempts))
	for i, a := range attempts {
		weights[i] = a.weight(v)
		total += weights[i]
	}
	n := rand.IntN(total)
	for i, a := range attempts {
		if n -= weights[i]; n < 0 {
			ctx, cancel := w.request(ctx)
			defer cancel()
			a.do(w, ctx, v)
			return
		}
	}
}

func pick[T any](items []T) T { return items[rand.IntN(len(items))] }

// pickInstance picks an instance, preferably one that matches.
func pickInstance(items []*instancev1alpha1.MacOSInstance, is func(*instancev1alpha1.MacOSInstance) bool) *instancev1alpha1.MacOSInstance {
	for range 4 {
		if i := pick(items); is(i) {
			return i
		}
	}
	return pick(items)
}

// Macs

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

// Leases

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

// Instances

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

func annotateLease(w *worker, ctx context.Context, v view) {
	for range burst {
		written, err := w.client().RackV1alpha1().MacNodeLeases(v.lease.Namespace).Patch(asTenant(ctx, v.lease.Namespace), v.lease.Name, types.MergePatchType, annotation(), metav1.PatchOptions{})
		if w.tried("lease/annotate", err) != success {
			return
		}
		w.wrote(written)
	}
}

func annotation() []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{"flood":"%d"}}}`, rand.Int64())
}

// Images

func deleteImage(w *worker, ctx context.Context, _ view) {
	name := pick(w.images)
	_, err := remove[*imagev1alpha1.MacOSImage](asAdmin(ctx), w.client().ImageV1alpha1().RESTClient(), "macosimages", "", name, check.ImageKey(name), w)
	if o := w.tried("image/delete", err); o == success || o == unknown {
		w.restoreImage(ctx, name)
	}
}

// restoreImage creates a deleted image again.
func (w *worker) restoreImage(ctx context.Context, name string) {
	images := w.client().ImageV1alpha1().MacOSImages()
	image, err := images.Create(asAdmin(ctx), newImage(name), metav1.CreateOptions{})
	if w.tried("image/create", err) != success {
		if image, err = images.Get(asAdmin(ctx), name, metav1.GetOptions{}); err != nil || image.Status.Phase == imagev1alpha1.MacOSImageReady {
			return
		}
	} else {
		w.wrote(image)
	}
	image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
	image, err = images.UpdateStatus(asControllers(ctx), image, metav1.UpdateOptions{})
	if w.tried("image/ready", err) == success {
		w.wrote(image)
	}
}
