package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/test/registrytest"
)

// forgetNamespace stores a lease, and an instance if given, as versions before status.namespaceUID
// did.
func (f *fleet) forgetNamespace(namespace, lease, instance string) {
	f.t.Helper()
	l := &rackv1alpha1.MacNodeLease{}
	f.rewrite("rack.macrack.io/macnodeleases/"+namespace+"/"+lease, l, func() { l.Status.NamespaceUID = "" })
	if instance != "" {
		i := &instancev1alpha1.MacOSInstance{}
		f.rewrite("instance.macrack.io/macosinstances/"+namespace+"/"+instance, i, func() { i.Status.NamespaceUID = "" })
	}
}

// seen returns the names of the leases and instances of acme that its tenant can see.
func (f *fleet) seen() []string {
	f.t.Helper()
	names := []string{}
	leases, err := f.acme.RackV1alpha1().MacNodeLeases("acme").List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	for _, l := range leases.Items {
		names = append(names, l.Name)
	}
	instances, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	for _, i := range instances.Items {
		names = append(names, i.Name)
	}
	return names
}

// upgrade starts a server of this version on the stored objects.
func (f *fleet) upgrade(n *namespaces) {
	f.t.Helper()
	f.servers = append(f.servers, registrytest.StartServer(f.t, f.etcd, f.clock, func(o *apiserver.Options) { o.Namespaces = n.find }))
}

// Leases and instances stored before status.namespaceUID existed belong to the tenant that created
// them, and to no later owner of the namespace. This holds as soon as a server of this version is
// ready.
func TestUpgradeOfObjectsWithoutNamespaceUID(t *testing.T) {
	for name, test := range map[string]struct {
		// before and after run before and after the upgrade.
		before, after func(*fleet, *namespaces)
		seen          []string
		lease         types.UID // the namespace UID of the lease after the upgrade
	}{
		"the same owner": {
			seen: []string{"build", "vm"}, lease: "acme-1",
		},
		"a later owner without leases": {
			before: func(_ *fleet, n *namespaces) { n.make("acme", "acme-2") },
			seen:   []string{}, lease: "acme-1",
		},
		"an owner after the upgrade": {
			after: func(_ *fleet, n *namespaces) { n.make("acme", "acme-2") },
			seen:  []string{}, lease: "acme-1",
		},
		"a later owner with a lease": {
			before: func(f *fleet, n *namespaces) {
				n.make("acme", "acme-2")
				f.lease("acme", "next", "mac-2")
				f.forgetNamespace("acme", "next", "")
			},
			seen: []string{"next"}, lease: "",
		},
		"a later owner with a lease of the same second": {
			before: func(f *fleet, n *namespaces) {
				n.make("acme", "acme-2")
				f.lease("acme", "next", "mac-2")
			},
			seen: []string{"next"}, lease: "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, n := newFleetWithNamespaces(t)
			f.mac("mac-1", "C07AAAAA0001")
			f.mac("mac-2", "C07AAAAA0002")
			f.lease("acme", "build", "mac-1")
			require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "build")))
			f.start("mac-1", "acme", "vm", 1)
			f.forgetNamespace("acme", "build", "vm")
			require.Eventually(t, func() bool { return len(f.seen()) == 0 }, time.Minute, 10*time.Millisecond, "they are hidden")
			if test.before != nil {
				test.before(f, n)
			}
			records := len(f.records("acme"))
			f.upgrade(n)
			assert.Equal(t, test.lease, f.getLease("acme", "build").Status.NamespaceUID)
			assert.Equal(t, test.lease, f.getInstance("acme", "vm").Status.NamespaceUID)
			if test.after != nil {
				test.after(f, n)
			}
			require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, test.seen, f.seen()) }, time.Minute, 10*time.Millisecond)
			assert.Len(t, f.records("acme"), records, "the upgrade is not recorded")
		})
	}
}

// A tenant still uses a lease from before the upgrade: it runs instances on it without a rejection.
func TestLeaseWithoutNamespaceUIDRunsInstancesAfterUpgrade(t *testing.T) {
	f, n := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	before := f.getLease("acme", "build")
	f.forgetNamespace("acme", "build", "")
	f.upgrade(n)
	require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "build")))
	f.start("mac-1", "acme", "vm", 1)
	lease := f.getLease("acme", "build")
	assert.Equal(t, before.Status.EarliestReleaseAt, lease.Status.EarliestReleaseAt)
	assert.Equal(t, before.Status.Conditions, lease.Status.Conditions)
	f.deleteLease("acme", "build")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", "build").Status.Phase)
}

// An object that cannot be decoded blocks neither the upgrade of the others nor the readiness of
// the server.
func TestUpgradeWithObjectThatCannotBeDecoded(t *testing.T) {
	f, n := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "broken"), metav1.CreateOptions{})
	require.NoError(t, err)
	f.forgetNamespace("acme", "build", "")
	f.corrupt("rack.macrack.io/macnodeleases/acme/broken", "k8s\x00broken")
	f.upgrade(n)
	require.EqualValues(t, "acme-1", f.getLease("acme", "build").Status.NamespaceUID)
}

// An instance of a version without start grants is in phase Starting with an identity, but without
// startedAt and startGrantedAt. Its start is counted and recorded with the next write of its agent,
// and of no other user.
func TestUpgradeOfInstanceInPhaseStarting(t *testing.T) {
	writes := map[string]string{
		"it starts still":  `{"status":{"phase":"Starting"}}`,
		"only its message": `{"status":{"message":"booting"}}`,
		"it runs":          `{"status":{"phase":"Running"}}`,
	}
	for name, patch := range writes {
		for _, stopping := range []bool{false, true} {
			if stopping {
				name += ", and is to stop"
				patch = `{"status":{"message":"booting"}}`
			}
			t.Run(name, func(t *testing.T) {
				f := newFleet(t, 1)
				f.mac("mac-1", "C07AAAAA0001")
				f.lease("acme", "build", "mac-1")
				require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
				_, err := f.patchStatus(f.controllers, "one", `{"status":{"podName":"one-vm"}}`)
				require.NoError(t, err)
				i := &instancev1alpha1.MacOSInstance{}
				f.rewrite("instance.macrack.io/macosinstances/acme/one", i, func() {
					i.Status.Phase = instancev1alpha1.MacOSInstanceStarting
					i.Status.MachineID, i.Status.MACAddress = identityOf(1)
				})
				require.Eventually(t, func() bool { return f.getInstance("acme", "one").Status.MachineID != "" }, time.Minute, 10*time.Millisecond)
				if stopping {
					_, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "one", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
					require.NoError(t, err)
				}
				_, err = f.patchStatus(f.controllers, "one", `{"metadata":{"labels":{"a":"b"}},"status":{"conditions":[{"type":"MacReady","status":"True","reason":"Online","message":"x","lastTransitionTime":"2026-03-01T12:00:00Z"}]}}`)
				require.NoError(t, err)
				require.Nil(t, f.getInstance("acme", "one").Status.StartGrantedAt, "only the agent's write may grant it")
				require.Zero(t, f.node("mac-1").Status.RunningVMs)

				granted, err := f.patchStatus(f.agent("mac-1"), "one", patch)
				require.NoError(t, err)
				assert.NotNil(t, granted.Status.StartGrantedAt)
				assert.EqualValues(t, 1, f.node("mac-1").Status.RunningVMs)
				f.stopped("mac-1", "acme", "one")
				assert.Zero(t, f.node("mac-1").Status.RunningVMs)
				started, ended := 0, 0
				for _, r := range f.records("acme") {
					switch r.Type {
					case rackv1alpha1.InstanceStarted:
						started++
					case rackv1alpha1.InstanceStopped:
						ended++
					}
				}
				assert.Equal(t, []int{1, 1}, []int{started, ended}, "recorded starts and stops")
			})
		}
	}
}
