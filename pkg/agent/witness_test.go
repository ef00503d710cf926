package agent

import (
	"os"
	"path/filepath"
	"strings"
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
	"macrack.io/macrack/pkg/apis/scalar"
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
	caches := []rackv1alpha1.LeaseCache{{Name: "gems", SizeLimit: scalar.MustParse("64Mi")}}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger, m.Status.Caches = &rackv1alpha1.MacNodeLedger{Head: head(7, "g")}, caches
	})
	seen := r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head == head(7, "g") && len(w.Instances) == 1 })
	assert.Equal(t, rackv1alpha1.WitnessedInstance{
		Name: "a", UID: "uid-a", ClassName: "small", ImageName: "macos-26",
		MachineID: started.MachineID, MACAddress: started.MACAddress, StartGrantedAt: started.StartGrantedAt,
	}, seen.Instances[0])
	assert.EqualValues(t, "uid-lease-1", seen.LeaseRef.UID)
	assert.Equal(t, caches, seen.Caches)

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

// Refused requests of other tenants move the head of the chain. The agent does not write and report
// each head, and a new lease is not delayed.
func TestHeadsThatFollowQuickly(t *testing.T) {
	r := newRack(t)
	var reports atomic.Int32
	r.onMacRack.prepend("patch", "macnodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), `"witness"`) {
			reports.Add(1)
		}
		return false, nil, nil
	})
	show := func(sequence int64) {
		r.changeMacNode(func(m *rackv1alpha1.MacNode) {
			m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: sequence, Hash: "h"}}
		})
	}
	show(1)
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 1 })
	for sequence := range int64(30) {
		show(sequence + 2)
		time.Sleep(20 * time.Millisecond)
	}
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 31 })
	assert.LessOrEqual(t, reports.Load(), int32(3))

	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger.Head.Sequence, m.Status.LeaseRef.UID = 32, "uid-another"
	})
	before := time.Now()
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool {
		return w.Head.Sequence == 32 && w.LeaseRef.UID == "uid-another"
	})
	assert.Less(t, time.Since(before), 3*time.Second)
}

// After a loss, the garbage collector deletes the pods of lost instances, possibly before the cache
// of the agent has noticed the loss. The agent asks the server before it stops a virtual machine.
func TestPodOfLostInstance(t *testing.T) {
	backup := &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: serial},
		Status: rackv1alpha1.MacNodeStatus{Ledger: &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: 3, Hash: "c"}}},
	}
	for name, answer := range map[string]struct {
		macNode *rackv1alpha1.MacNode
		err     error
	}{
		"the MacNode is lost":       {nil, apierrors.NewNotFound(schema.GroupResource{Resource: "macnodes"}, nodeName)},
		"the server is unavailable": {nil, apierrors.NewServiceUnavailable("etcd is starting")},
		"the MacNode is older":      {backup, nil},
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
				return lost.Load(), answer.macNode, answer.err
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

// A virtual machine whose lease is not that of the Mac stops only if the server confirms its
// history after that was observed: a MacNode that does not exist is no reason.
func TestLeaseMismatchOnAServerThatHasLostHistory(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: 7, Hash: "g"}}
	})
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 7 })
	r.run("a")
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return len(w.Instances) == 1 })
	macNode := r.macNode()
	macNode.Status.LeaseRef.UID = "uid-another"
	var lost atomic.Bool
	lost.Store(true)
	r.onMacRack.prepend("get", "macnodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return lost.Load(), nil, apierrors.NewNotFound(schema.GroupResource{Resource: "macnodes"}, nodeName)
	})
	_, err := r.macrack.RackV1alpha1().MacNodes().UpdateStatus(r.ctx, macNode, metav1.UpdateOptions{})
	require.NoError(t, err)
	time.Sleep(time.Second)
	assert.Equal(t, 1, r.running())
	lost.Store(false)
	r.eventually(func() bool { return r.running() == 0 }, func() any { return r.running() })
}

// The Mac continues the chain of a restored server only after an administrator has accepted the
// loss of the record that the Mac has seen.
func TestAcceptedLoss(t *testing.T) {
	r := newRack(t)
	at := func(sequence int64, hash string) *rackv1alpha1.MacNodeLedger {
		return &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: sequence, Hash: hash}}
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Ledger = at(7, "g") })
	seen := r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 7 })
	for _, loss := range []*rackv1alpha1.LedgerLoss{{Witness: *seen}, nil} {
		r.changeMacNode(func(m *rackv1alpha1.MacNode) {
			m.Status.Ledger, m.Status.Witness = at(3, "c"), nil
			m.Status.Ledger.Loss = loss
		})
		time.Sleep(200 * time.Millisecond)
		assert.Equal(t, seen, r.waitWitness(func(*rackv1alpha1.MacNodeWitness) bool { return true }))
	}
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Ledger.Accepted = &seen.Head })
	r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Hash == "c" })
}

// A MacNode that was created again with the serial number of another Mac does not overwrite the
// witness, which may be the only copy of a lease.
func TestMacNodeOfAnotherMac(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: 7, Hash: "g"}}
	})
	seen := r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == 7 })
	require.NotNil(t, seen.LeaseRef)
	r.run("a")
	kept := func() string {
		data, err := os.ReadFile(filepath.Join(r.dir, "witness.json"))
		require.NoError(t, err)
		return string(data)
	}
	r.eventually(func() bool { return strings.Contains(kept(), "uid-a") }, func() any { return kept() })
	before := kept()
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Spec.SerialNumber = "C07OTHER0001"
		m.Status = rackv1alpha1.MacNodeStatus{Ledger: &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: 9, Hash: "z"}}}
	})
	time.Sleep(500 * time.Millisecond)
	assert.Equal(t, before, kept())
	assert.Nil(t, r.macNode().Status.Witness)
	assert.Equal(t, 1, r.running())
}

// An instance in a slot stays in the witness if the cache does not have the grant of its start yet.
func TestWitnessDespiteAStaleCache(t *testing.T) {
	r := newRack(t)
	head := func(sequence int64) {
		r.changeMacNode(func(m *rackv1alpha1.MacNode) {
			m.Status.Ledger = &rackv1alpha1.MacNodeLedger{Head: rackv1alpha1.ChainPosition{Sequence: sequence, Hash: "g"}}
		})
		r.waitWitness(func(w *rackv1alpha1.MacNodeWitness) bool { return w.Head.Sequence == sequence })
	}
	head(7)
	r.run("a")
	head(8)
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.StartGrantedAt = nil })
	time.Sleep(200 * time.Millisecond)
	head(9)
	assert.Len(t, r.macNode().Status.Witness.Instances, 1)
}
