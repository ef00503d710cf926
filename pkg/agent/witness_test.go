package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func (r *rack) waitWitness(is func(*rackv1alpha1.MacNodeWitness) bool) *rackv1alpha1.MacNodeWitness {
	r.t.Helper()
	r.eventually(func() bool { w := r.macNode().Status.Witness; return w != nil && is(w) }, func() any { return r.macNode().Status.Witness })
	return r.macNode().Status.Witness
}

// On a server that lacks records which the Mac has seen, a virtual machine continues to run without
// its lease, its pod and a scrub. An explicit request still stops it.
func TestServerThatHasLostHistory(t *testing.T) {
	r := newRack(t)
	head := func(sequence int64, hash string) rackv1alpha1.ChainPosition {
		return rackv1alpha1.ChainPosition{Sequence: sequence, Hash: hash, Namespace: tenant}
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: head(6, "f")} })
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head == head(6, "f") })
	started := r.run("a").Status
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: head(7, "g")} })
	seen := r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head == head(7, "g") && len(w.Instances) == 1 })
	assert.Equal(t, rackv1alpha1.WitnessedInstance{
		Name: "a", UID: "uid-a", ClassName: "small", ImageName: "macos-26",
		MachineID: started.MachineID, MACAddress: started.MACAddress, StartGrantedAt: started.StartGrantedAt,
	}, seen.Instances[0])
	assert.EqualValues(t, "uid-lease-1", seen.LeaseRef.UID)

	// The server is restored to a time before the lease.
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger, m.Status.Witness, m.Status.LeaseRef = &rackv1alpha1.MacNodeLedger{Head: head(3, "c"), Unconfirmed: true}, nil, nil
	})
	assert.Equal(t, seen, r.waitWitness(func(*rackv1alpha1.MacNodeWitness) bool { return true }))
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonLedgerBehind}
		m.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "globex", Name: "theirs", UID: "uid-theirs"}
		m.Status.ReleasingSince = &metav1.Time{Time: time.Now()}
	})
	require.NoError(t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, "pod-a", metav1.DeleteOptions{}))
	time.Sleep(500 * time.Millisecond)
	r.restart()
	time.Sleep(500 * time.Millisecond)
	assert.Equal(t, 1, r.running())
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	assert.Nil(t, r.macNode().Status.Scrub)
	assert.Equal(t, seen, r.macNode().Status.Witness)

	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), Reason: "Asked", GracePeriodSeconds: 1}
	})
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	assert.Zero(t, r.running())
}

// After a loss, the garbage collector deletes the pods of lost instances, possibly before the cache
// of the agent has noticed the loss. The agent asks the server before it stops a virtual machine.
func TestPodOfLostInstance(t *testing.T) {
	for name, err := range map[string]error{
		"the MacNode is lost":       apierrors.NewNotFound(schema.GroupResource{Resource: "macnodes"}, nodeName),
		"the server is unavailable": apierrors.NewServiceUnavailable("etcd is starting"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			r.changeMacNode(func(m *rackv1alpha1.MacNode) {
				m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: 7, Hash: "g"}}
			})
			r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 7 })
			r.run("a")
			var lost atomic.Bool
			lost.Store(true)
			r.onMacRack.prepend("get", "macnodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return lost.Load(), nil, err
			})
			require.NoError(t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, "pod-a", metav1.DeleteOptions{}))
			time.Sleep(time.Second)
			assert.Equal(t, 1, r.running())
			lost.Store(false) // and the instance has no pod
			r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
		})
	}
}

// A virtual machine whose instance is lost with other history is not unknown: a restore brings the
// instance back, and the Mac must then be in no quarantine.
func TestLostInstanceIsNotUnknown(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: 7, Hash: "g"}}
	})
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 7 })
	r.run("a")
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonLedgerBehind}
	})
	require.NoError(t, r.macrack.InstanceV1alpha1().MacOSInstances(tenant).Delete(r.ctx, "a", metav1.DeleteOptions{}))
	time.Sleep(time.Second)
	assert.Equal(t, 1, r.running())
	assert.True(t, meta.IsStatusConditionTrue(r.macNode().Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy))

	// The server has all history, so the loss of the instance is something else.
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
}

// The Mac forgets a server's chain only after the server has compared its witness: it then
// continues the chain of a restored server.
func TestAcceptedLoss(t *testing.T) {
	r := newRack(t)
	at := func(sequence int64, hash string) *rackv1alpha1.MacNodeLedger {
		return &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: sequence, Hash: hash}}
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Ledger = at(7, "g") })
	seen := r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 7 })
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger, m.Status.Witness = at(9, "z"), nil
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonLedgerForked}
	})
	time.Sleep(200 * time.Millisecond)
	assert.Equal(t, seen, r.waitWitness(func(*rackv1alpha1.MacNodeWitness) bool { return true }))
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil })
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Hash == "z" })
}
