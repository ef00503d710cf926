package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

func TestLockedKeychain(t *testing.T) {
	locked := contract.Simulation{StartError: &contract.Error{Domain: contract.KeychainErrorDomain, Code: 1, Message: "the login keychain is locked: Internal Virtualization error."}}
	r := newRack(t, func(r *rack) { require.NoError(t, r.host.SetGuest(locked)) })
	i := newInstance("a")
	r.create(i, newPod(i))
	waits := func() {
		r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "keychain") }, func() any { return r.instance("a").Status })
	}
	waits()
	c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKeychainLocked)
	assert.Contains(t, c.Message, "unlock the login keychain at the screen")
	assert.Equal(t, instancev1alpha1.MacOSInstanceStarting, r.instance("a").Status.Phase, "the instance does not fail")

	// A reboot that does not unlock the keychain starts another quarantine.
	r.stop()
	require.NoError(t, r.host.Reboot("boot-2"))
	r.start()
	r.eventually(func() bool { return r.macNode().Status.BootID == "boot-2" }, func() any { return r.macNode().Status })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKeychainLocked)
	waits()

	require.NoError(t, r.host.SetGuest(contract.Simulation{}))
	r.stop()
	require.NoError(t, r.host.Reboot("boot-3"))
	r.start()
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
}

func TestNoLoginSession(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.SetLoggedOut(true))
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "only in a login session") }, func() any { return r.instance("a").Status })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	r.eventually(func() bool {
		fake.Step(10 * time.Second)
		for _, c := range r.macNode().Status.Conditions {
			if c.Type == rackv1alpha1.MacNodeSlotsHealthy && c.Reason == rackv1alpha1.ReasonNoLoginSession {
				return true
			}
		}
		return false
	}, func() any { return r.macNode().Status.Conditions })
	require.NoError(t, r.host.SetLoggedOut(false))
	r.eventually(func() bool {
		fake.Step(time.Second)
		return r.instance("a").Status.Phase == instancev1alpha1.MacOSInstanceRunning
	}, func() any { return r.instance("a").Status })
}
