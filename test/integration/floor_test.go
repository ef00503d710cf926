package integration

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// toFloor puts the clock to a duration before a lease's floor, or after it if negative.
func toFloor(t *testing.T, lease *rackv1alpha1.MacNodeLease, before time.Duration) {
	t.Helper()
	left := lease.Status.EarliestReleaseAt.Sub(tb.Clock.Now()) - before
	require.Positive(t, left, "the moment has passed already")
	tb.Advance(left)
}

// A lease deleted after three hours is Held for the remaining 21, in which its Mac may still be
// used. Only then does another tenant get the Mac, emptied.
func TestFloorOf24Hours(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "floor")
	assert.Equal(t, 24*time.Hour, lease.Status.EarliestReleaseAt.Sub(lease.Status.BoundAt.Time))
	macName := lease.Status.NodeName
	startInstance(t, acme, "before", "floor")

	// +3 h: deleted.
	tb.Advance(3 * time.Hour)
	before := tb.Clock.Now()
	_, stderr := kubectl(t, acme, "delete", leases, "floor", "--wait=false")
	assert.Contains(t, stderr, "Warning: rule 3 (at least 24 hours)")
	assert.Contains(t, stderr, lease.Status.EarliestReleaseAt.UTC().Format(time.RFC3339))
	held := getLease(t, acme, "floor")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, held.Status.Phase)
	assert.NotNil(t, held.DeletionTimestamp)
	assert.WithinDuration(t, before, held.Status.HeldAt.Time, 30*time.Second)
	assert.True(t, lease.Status.EarliestReleaseAt.Equal(held.Status.EarliestReleaseAt), "a deletion does not change the floor")
	on := records(t, acme, rackv1alpha1.LeaseHeld, "floor")
	require.Len(t, on, 1)
	assert.Equal(t, "acme", on[0].Actor.Username)
	assert.Equal(t, lease.Status.SerialNumber, on[0].Chassis.SerialNumber)
	assert.InDelta(t, 21*time.Hour, on[0].Details.Remaining.Duration, float64(time.Minute))
	stdout, _ := kubectl(t, "direct-acme", "get", "leases", "floor", "--no-headers")
	assert.Regexp(t, `Held .* 20h`, stdout, "REMAINING")
	kubectl(t, acme, "wait", "--for=jsonpath={.status.phase}=Stopped", instances+"/before", "--timeout="+patience.String())
	eventually(t, func(c *assert.CollectT) {
		assert.EqualValues(c, 0, getMac(t, macName).Status.RunningVMs)
		assert.Empty(c, getLease(t, acme, "floor").Status.Instances, "the slot is free")
	})

	// +10 h: only the tenant may use the Mac.
	tb.Advance(7 * time.Hour)
	created := startInstance(t, acme, "while-held", "floor")
	assert.Equal(t, lease.Status.SerialNumber, created.Status.SerialNumber)
	assert.Contains(t, createFails(t, globex, `
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: greedy}
spec: {className: base, serialNumber: `+lease.Status.SerialNumber+`}
`), "rule 2 (one tenant per Mac)")

	// A minute before the floor nothing has changed.
	toFloor(t, held, time.Minute)
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, getLease(t, acme, "floor").Status.Phase)
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, instancePhase(t, acme, "while-held"))

	// At the floor, while no controller acts on it: new instances are refused.
	tb.StopControllers()
	start := sync.OnceValue(tb.StartControllers)
	t.Cleanup(func() { assert.NoError(t, start()) })
	toFloor(t, held, -time.Second)
	assert.Contains(t, createFails(t, acme, instanceManifest("too-late", "floor")), "lease not usable")
	assert.Equal(t, lease.UID, getMac(t, macName).Status.LeaseRef.UID, "the Mac waits for its release")
	require.NoError(t, start())

	eventually(t, func(c *assert.CollectT) {
		_, err := client(t, admin).RackV1alpha1().MacNodeLeases(acme).Get(t.Context(), "floor", metav1.GetOptions{})
		assert.True(c, apierrors.IsNotFound(err), "the lease is deleted automatically: %v", err)
	})
	mac := getMac(t, macName)
	assert.Nil(t, mac.Status.LeaseRef)
	assert.Nil(t, mac.Status.EarliestReleaseAt)
	assert.EqualValues(t, 0, mac.Status.RunningVMs)
	assert.Equal(t, rackv1alpha1.MacNodeAvailable, mac.Status.Phase)
	require.NotNil(t, mac.Status.Scrub)
	assert.Equal(t, lease.UID, mac.Status.Scrub.LeaseUID)
	assert.NotEmpty(t, mac.Status.Scrub.Removed, "the files of the instances were removed")
	assert.Empty(t, mac.Status.Scrub.Remaining)
	assert.True(t, meta.IsStatusConditionTrue(mac.Status.Conditions, rackv1alpha1.MacNodeScrubbed))
	assert.Equal(t, []string{unleased}, ourTaints(t, t, macName))

	on = records(t, acme, rackv1alpha1.LeaseReleased, "floor")
	require.Len(t, on, 1)
	assert.GreaterOrEqual(t, on[0].Details.Duration.Duration, 24*time.Hour)
	assert.False(t, on[0].Details.ReleasedAt.Time.Before(lease.Status.EarliestReleaseAt.Time))
	assert.Contains(t, on[0].Details.NodeTaints, unleased)

	// The same Mac now belongs to globex, without any data of acme's.
	create(t, globex, `
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: next}
spec: {className: base, serialNumber: `+lease.Status.SerialNumber+`}
`)
	kubectl(t, globex, "wait", "--for=condition=Bound", leases+"/next", "--timeout="+patience.String())
	assert.Equal(t, macName, getLease(t, globex, "next").Status.NodeName)
	startInstance(t, globex, "mine", "next")
	assertCompliant(t)
}

// A lease that runs longer than its floor is released as soon as it is deleted.
func TestDeletedAfterTheFloor(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "long")
	startInstance(t, acme, "one", "long")
	toFloor(t, lease, -10*time.Hour)
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, instancePhase(t, acme, "one"), "a lease does not end at its floor")
	startInstance(t, acme, "two", "long")

	_, stderr := kubectl(t, acme, "delete", leases, "long", "--timeout="+patience.String())
	assert.NotContains(t, stderr, "Warning")
	assert.Empty(t, records(t, acme, rackv1alpha1.LeaseHeld, "long"))
	released := records(t, acme, rackv1alpha1.LeaseReleased, "long")
	require.Len(t, released, 1)
	assert.GreaterOrEqual(t, released[0].Details.Duration.Duration, 34*time.Hour)
}

// A minimum duration can be extended but not shortened; expireAfter ends a lease by itself, but not
// before its floor.
func TestMinimumDuration(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "longer")
	kubectl(t, acme, "patch", leases, "longer", "--type=merge", "-p", `{"spec":{"minimumDuration":"36h","expireAfter":"40h"}}`)
	floor := getLease(t, acme, "longer").Status.EarliestReleaseAt
	assert.Equal(t, 36*time.Hour, floor.Sub(lease.Status.BoundAt.Time))
	assert.True(t, floor.Equal(getMac(t, lease.Status.NodeName).Status.EarliestReleaseAt), "the Mac has the same floor")
	assert.Contains(t, kubectlFails(t, acme, "patch", leases, "longer", "--type=merge", "-p", `{"spec":{"minimumDuration":"24h"}}`), rules.TwentyFourHours.String())
	assert.Contains(t, kubectlFails(t, acme, "patch", leases, "longer", "--type=merge", "-p", `{"spec":{"minimumDuration":null}}`), rules.TwentyFourHours.String())

	tb.Advance(36*time.Hour + time.Minute)
	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, getLease(t, acme, "longer").Status.Phase)
	tb.Advance(4 * time.Hour)
	eventually(t, func(c *assert.CollectT) {
		_, err := client(t, admin).RackV1alpha1().MacNodeLeases(acme).Get(t.Context(), "longer", metav1.GetOptions{})
		assert.True(c, apierrors.IsNotFound(err), "it expires: %v", err)
	})
	assert.Len(t, records(t, acme, rackv1alpha1.LeaseReleased, "longer"), 1)
}

func instancePhase(t *testing.T, namespace, name string) instancev1alpha1.MacOSInstancePhase {
	t.Helper()
	i, err := client(t, admin).InstanceV1alpha1().MacOSInstances(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return i.Status.Phase
}

// assertCompliant reads the ledger: no rule was broken.
func assertCompliant(t *testing.T) {
	t.Helper()
	report, err := client(t, admin).RackV1alpha1().ComplianceReports().Get(t.Context(), "90d", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, rackv1alpha1.ComplianceCompliant, report.Status.Verdict, "%+v", report.Status)
	assert.Empty(t, report.Status.Violations)
	assert.Positive(t, report.Status.Records)
	assert.LessOrEqual(t, report.Status.MaxVMs, int64(2))
}
