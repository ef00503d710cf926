package macnodelease

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/controllers/predicates"
	"macrack.io/macrack/pkg/rules"
)

// anInstance returns a running instance of lease acme/a, created so long before noon.
func anInstance(name string, before time.Duration, changes ...func(*instancev1alpha1.MacOSInstance)) *instancev1alpha1.MacOSInstance {
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: name, UID: types.UID("uid-" + name),
			CreationTimestamp: metav1.NewTime(noon.Add(-before)),
			OwnerReferences:   []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "a", UID: "uid-a"}},
		},
		Spec:   instancev1alpha1.MacOSInstanceSpec{LeaseName: "a"},
		Status: instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceRunning},
	}
	for _, change := range changes {
		change(instance)
	}
	return instance
}

func instancePhase(p instancev1alpha1.MacOSInstancePhase) func(*instancev1alpha1.MacOSInstance) {
	return func(instance *instancev1alpha1.MacOSInstance) { instance.Status.Phase = p }
}

// slots gives the lease slots for these instances.
func slots(names ...string) func(*rackv1alpha1.MacNodeLease) {
	return func(lease *rackv1alpha1.MacNodeLease) {
		for _, name := range names {
			lease.Status.Instances = append(lease.Status.Instances, rackv1alpha1.LeaseSlot{Name: name, UID: types.UID("uid-" + name)})
		}
	}
}

func TestLifecycle(t *testing.T) {
	type change = func(*rackv1alpha1.MacNodeLease)
	const day = 24 * time.Hour
	lease := func(changes ...change) *rackv1alpha1.MacNodeLease { return aLease("a", -1000, changes...) }
	leasePhase := func(p rackv1alpha1.MacNodeLeasePhase) change {
		return func(lease *rackv1alpha1.MacNodeLease) { lease.Status.Phase = p }
	}
	floorAt := func(at time.Time) change {
		return func(lease *rackv1alpha1.MacNodeLease) { lease.Status.EarliestReleaseAt = &metav1.Time{Time: at} }
	}
	releasing := func(changes ...change) *rackv1alpha1.MacNodeLease {
		return lease(append([]change{boundAt(30 * time.Hour), leasePhase(rackv1alpha1.MacNodeLeaseReleasing)}, changes...)...)
	}
	scrubbed := func(changes ...func(*rackv1alpha1.MacNode)) *rackv1alpha1.MacNode {
		return aMac("mac-1", append([]func(*rackv1alpha1.MacNode){leasedBy(releasing()), isReleasing, func(mac *rackv1alpha1.MacNode) {
			mac.Status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: "uid-a"}
			mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue}}
		}}, changes...)...)
	}
	node := func(taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	stopAsked := func(instance *instancev1alpha1.MacOSInstance) {
		instance.Status.StopRequest = &instancev1alpha1.StopRequest{}
	}
	ofEarlierLease := func(instance *instancev1alpha1.MacOSInstance) { instance.OwnerReferences[0].UID = "earlier" }
	refused := errors.New("refused")
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) change {
		return func(lease *rackv1alpha1.MacNodeLease) {
			lease.Status.Conditions = []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: message}}
		}
	}
	away := func(mac *rackv1alpha1.MacNode) {
		mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeReady, Status: metav1.ConditionFalse, Message: "silent"}}
	}
	const (
		status    = "status Releasing 2026-08-01T06:00:00Z: Released=False: "
		scrubbing = "Scrubbing: waits for the Mac S-mac-1 to prove that nothing of the tenant is left on it"
		tainting  = "TaintingNode: waits for the Node mac-1 to be tainted macrack.io/unleased, so that nothing is scheduled there"
	)

	for _, tt := range []struct {
		name      string
		lease     *rackv1alpha1.MacNodeLease
		untold    bool // the lease has no condition MacReady yet
		instances []*instancev1alpha1.MacOSInstance
		mac       *rackv1alpha1.MacNode
		node      *corev1.Node
		nodeNow   *corev1.Node // at the server, if it is different from the cache
		fail      error        // the error of every call
		calls     []string
		due       time.Time
		err       error
	}{
		{name: "gone"},
		{name: "pending", lease: lease()},
		{name: "released", lease: lease(boundAt(30*time.Hour), leasePhase(rackv1alpha1.MacNodeLeaseReleased))},

		{name: "bound", lease: lease(boundAt(time.Hour)), instances: []*instancev1alpha1.MacOSInstance{anInstance("vm", 0)}},
		{name: "bound, past the floor", lease: lease(boundAt(30 * time.Hour)), instances: []*instancev1alpha1.MacOSInstance{anInstance("vm", 0)}},
		{name: "expires later", lease: lease(boundAt(time.Hour), expires(2*day)), due: noon.Add(2*day - time.Hour)},
		{name: "expires now", lease: lease(boundAt(2*day), expires(2*day)), calls: []string{"delete a", "expired a"}},
		{name: "expires, and has already been deleted", lease: lease(boundAt(2*day), expires(2*day)), fail: errNotFound, calls: []string{"delete a"}},
		{name: "expires, and cannot be deleted", lease: lease(boundAt(2*day), expires(2*day)), fail: refused, calls: []string{"delete a"}, err: refused},
		{
			name:  "never expires before its floor",
			lease: lease(boundAt(2*day), expires(2*day), func(lease *rackv1alpha1.MacNodeLease) { lease.Spec.MinimumDuration = scalar.NewDuration(3 * day) }, floorAt(noon.Add(day))),
			due:   noon.Add(day),
		},

		{name: "bound: the Mac is offline", untold: true, lease: lease(boundAt(time.Hour)), mac: aMac("mac-1", away),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=False: Offline: Mac S-mac-1 is offline (silent); its virtual machines may still run, and the lease keeps the Mac"}},
		{name: "held: the Mac is in quarantine", untold: true, lease: lease(boundAt(time.Hour), heldAt(0)),
			mac: aMac("mac-1", func(mac *rackv1alpha1.MacNode) {
				mac.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses"}
			}),
			calls: []string{"status Held 2026-08-02T11:00:00Z: MacReady=False: KernelQuotaStuck: Mac S-mac-1 is in quarantine, and no instance starts on it: the kernel refuses"}, due: noon.Add(23 * time.Hour)},
		{name: "held, past the floor: the release does not wait until the tenant is told of the Mac", untold: true, lease: lease(boundAt(30*time.Hour), heldAt(0)),
			mac: aMac("mac-1", func(mac *rackv1alpha1.MacNode) {
				mac.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses"}
			}),
			calls: []string{
				"status Held 2026-08-01T06:00:00Z: MacReady=False: KernelQuotaStuck: Mac S-mac-1 is in quarantine, and no instance starts on it: the kernel refuses",
				"status Releasing 2026-08-01T06:00:00Z",
			}},
		{name: "bound: the Mac was away", lease: lease(boundAt(time.Hour), condition("MacReady", metav1.ConditionFalse, "Offline", "")), mac: aMac("mac-1"),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy"}},
		{name: "bound: the Mac is back online, which is already reported", mac: aMac("mac-1"),
			lease: lease(boundAt(time.Hour), condition("MacReady", metav1.ConditionTrue, "Ready", "Mac S-mac-1 is online and healthy"))},
		{name: "bound before leases had the condition MacReady", untold: true, lease: lease(boundAt(time.Hour)), mac: aMac("mac-1"),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy"}},
		{name: "releasing: the Mac is back", lease: releasing(condition("MacReady", metav1.ConditionFalse, "Offline", "")), mac: scrubbed(),
			calls: []string{"status Releasing 2026-08-01T06:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy", status + tainting}},
		{name: "bound: the spec has changed since", mac: aMac("mac-1"),
			lease: lease(boundAt(time.Hour), condition("MacReady", metav1.ConditionTrue, "Ready", "Mac S-mac-1 is online and healthy"), func(lease *rackv1alpha1.MacNodeLease) { lease.Generation = 2 }),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy"}},

		{name: "the floor is too short", lease: lease(boundAt(time.Hour), floorAt(noon)), calls: []string{"status Bound 2026-08-02T11:00:00Z"}},
		{
			name:  "the floor is shorter than the minimum duration",
			lease: lease(boundAt(time.Hour), func(lease *rackv1alpha1.MacNodeLease) { lease.Spec.MinimumDuration = scalar.NewDuration(2 * day) }),
			calls: []string{"status Bound 2026-08-03T11:00:00Z"},
		},
		{name: "the floor is gone", lease: lease(boundAt(time.Hour), heldAt(0), func(lease *rackv1alpha1.MacNodeLease) { lease.Status.EarliestReleaseAt = nil }),
			calls: []string{"status Held 2026-08-02T11:00:00Z"}},
		{name: "the floor is too short and cannot be restored: the real one counts", lease: lease(boundAt(time.Hour), heldAt(0), floorAt(noon)), fail: errForbidden,
			calls: []string{"status Held 2026-08-02T11:00:00Z"}, due: noon.Add(23 * time.Hour)},
		{name: "the floor cannot be restored just now", lease: lease(boundAt(time.Hour), floorAt(noon)), fail: errTimeout,
			calls: []string{"status Bound 2026-08-02T11:00:00Z"}, err: errTimeout},
		{name: "the floor of a lease that is being released is not touched", lease: releasing(floorAt(noon.Add(-7*day)), slots("vm")), mac: scrubbed(),
			calls: []string{"status Releasing 2026-07-25T12:00:00Z: Released=False: StoppingInstances: waits for instances to stop: vm"}},

		{
			name: "held: instances from before the deletion are stopped, later ones are not", lease: lease(boundAt(2*time.Hour), slots("before"), heldAt(time.Hour), slots("after")),
			instances: []*instancev1alpha1.MacOSInstance{
				anInstance("before", 0), anInstance("after", 90*time.Minute), anInstance("unlisted", 90*time.Minute),
			},
			calls: []string{"stop before LeaseHeld"},
			due:   noon.Add(22 * time.Hour),
		},
		{
			name: "held: ended instances and those already asked to stop are left alone", lease: lease(boundAt(2*time.Hour), slots("stopped", "failed", "asked", "earlier"), heldAt(time.Hour)),
			instances: []*instancev1alpha1.MacOSInstance{
				anInstance("stopped", 90*time.Minute, instancePhase(instancev1alpha1.MacOSInstanceStopped)),
				anInstance("failed", 90*time.Minute, instancePhase(instancev1alpha1.MacOSInstanceFailed)),
				anInstance("asked", 90*time.Minute, stopAsked),
				anInstance("earlier", 90*time.Minute, ofEarlierLease),
			},
			due: noon.Add(22 * time.Hour),
		},
		{
			name: "held: an instance is gone", lease: lease(boundAt(2*time.Hour), slots("vm"), heldAt(time.Hour)), fail: errNotFound,
			instances: []*instancev1alpha1.MacOSInstance{anInstance("vm", 90*time.Minute)},
			calls:     []string{"stop vm LeaseHeld"}, due: noon.Add(22 * time.Hour),
		},
		{
			name: "held: an instance that cannot be stopped does not keep the other running", lease: lease(boundAt(2*time.Hour), slots("vm-1", "vm-2"), heldAt(time.Hour)), fail: refused,
			instances: []*instancev1alpha1.MacOSInstance{anInstance("vm-1", 90*time.Minute), anInstance("vm-2", 90*time.Minute)},
			calls:     []string{"stop vm-1 LeaseHeld", "stop vm-2 LeaseHeld"}, err: refused, due: noon.Add(22 * time.Hour),
		},
		{name: "held, a second before the floor", lease: lease(boundAt(day-time.Second), heldAt(time.Hour)), due: noon.Add(time.Second)},
		{name: "held, at the floor", lease: lease(boundAt(day), heldAt(time.Hour)), calls: []string{"status Releasing 2026-08-01T12:00:00Z"}},
		{name: "held, at the floor that the server does not see yet", lease: lease(boundAt(day), heldAt(time.Hour)), fail: errForbidden,
			calls: []string{"status Releasing 2026-08-01T12:00:00Z"}, due: noon.Add(askAgain)},
		{name: "held, and the server fails", lease: lease(boundAt(day), heldAt(time.Hour)), fail: errTimeout,
			calls: []string{"status Releasing 2026-08-01T12:00:00Z"}, err: errTimeout},
		{name: "held, the floor was lengthened", lease: lease(boundAt(30*time.Hour), heldAt(time.Hour), floorAt(noon.Add(time.Hour))), due: noon.Add(time.Hour)},

		{
			name: "releasing: everything is stopped", lease: releasing(heldAt(time.Hour), leasePhase(rackv1alpha1.MacNodeLeaseReleasing), slots("after")),
			instances: []*instancev1alpha1.MacOSInstance{anInstance("after", 0), anInstance("asked", 0, stopAsked), anInstance("earlier", 0, ofEarlierLease)},
			mac:       scrubbed(), node: node(rules.UnleasedTaint()),
			calls: []string{"stop after LeaseReleasing", "status Releasing 2026-08-01T06:00:00Z: Released=False: StoppingInstances: waits for instances to stop: after"},
		},
		{name: "releasing: before the floor, as this clock sees it", lease: releasing(floorAt(noon.Add(time.Hour))), mac: scrubbed(), node: node(rules.UnleasedTaint()), due: noon.Add(time.Hour)},
		{name: "releasing: slots are taken", lease: releasing(slots("vm", "other")), mac: scrubbed(), node: node(rules.UnleasedTaint()),
			calls: []string{status + "StoppingInstances: waits for instances to stop: vm, other"}},
		{name: "releasing: not scrubbed", lease: releasing(), mac: scrubbed(func(mac *rackv1alpha1.MacNode) { mac.Status.Scrub = nil }), node: node(rules.UnleasedTaint()),
			calls: []string{status + scrubbing}},
		{name: "releasing: not scrubbed, which is already reported", lease: releasing(condition("Released", metav1.ConditionFalse, "Scrubbing", strings.TrimPrefix(scrubbing, "Scrubbing: "))),
			mac: scrubbed(func(mac *rackv1alpha1.MacNode) { mac.Status.Scrub = nil }), node: node(rules.UnleasedTaint())},
		{name: "releasing: a VM runs", lease: releasing(), mac: scrubbed(func(mac *rackv1alpha1.MacNode) { mac.Status.RunningVMs = 1 }), node: node(rules.UnleasedTaint()),
			calls: []string{status + scrubbing}},
		{name: "releasing: the scrub failed", lease: releasing(), mac: scrubbed(func(mac *rackv1alpha1.MacNode) {
			mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonScrubFailed, Message: "a disk is busy"}}
		}), node: node(rules.UnleasedTaint()),
			calls: []string{status + "ScrubFailed: waits for the Mac S-mac-1 to prove that nothing of the tenant is left on it, which failed: a disk is busy"}},
		{name: "releasing: the Mac is offline", lease: releasing(slots("vm")), mac: scrubbed(away), node: node(rules.UnleasedTaint()),
			calls: []string{status + "MacOffline: waits for instances to stop: vm; Mac S-mac-1 is offline (silent)"}},
		{name: "releasing: the Mac is unknown", lease: releasing(), node: node(rules.UnleasedTaint()), err: errNotFound},
		{name: "releasing: the Node does not exist", lease: releasing(), mac: scrubbed(), calls: []string{status + tainting}},
		{name: "releasing: the Node still has the tenant's taint", lease: releasing(), mac: scrubbed(), node: node(rules.TenantTaint("acme")), calls: []string{status + tainting}},
		{name: "releasing: the Node has both taints", lease: releasing(), mac: scrubbed(), node: node(rules.TenantTaint("acme"), rules.UnleasedTaint()), calls: []string{status + tainting}},
		{
			name: "releasing: the cached Node is stale", lease: releasing(), mac: scrubbed(), node: node(rules.UnleasedTaint()), nodeNow: node(),
			calls: []string{"read mac-1"},
		},
		{
			name: "released, with the taints read back", lease: releasing(), mac: scrubbed(), node: node(rules.UnleasedTaint()),
			nodeNow: node(rules.UnleasedTaint(), corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute}),
			calls:   []string{"read mac-1", "release a a=b:NoExecute macrack.io/unleased:NoSchedule", "released a"},
		},
		{
			name: "released meanwhile", lease: releasing(), mac: scrubbed(), node: node(rules.UnleasedTaint()), fail: errNotFound,
			calls: []string{"read mac-1", "release a macrack.io/unleased:NoSchedule"},
		},
		{
			name: "the release is refused", lease: releasing(), mac: scrubbed(), node: node(rules.UnleasedTaint()), fail: errForbidden,
			calls: []string{"read mac-1", "release a macrack.io/unleased:NoSchedule"}, err: errForbidden,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var calls []string
			call := func(s string) error {
				calls = append(calls, s)
				return tt.fail
			}
			if tt.mac != nil && !tt.untold && meta.FindStatusCondition(tt.lease.Status.Conditions, "MacReady") == nil {
				tt.lease.Status.Conditions = append(tt.lease.Status.Conditions, predicates.MacReady(tt.mac))
			}
			original := tt.lease.DeepCopy()
			l := &lifecycle{
				now: func() time.Time { return noon },
				getLease: func(_, name string) (*rackv1alpha1.MacNodeLease, error) {
					if tt.lease == nil {
						return nil, errNotFound
					}
					return tt.lease, nil
				},
				instancesOf: func(namespace, leaseName string) ([]*instancev1alpha1.MacOSInstance, error) {
					assert.Equal(t, "acme/a", namespace+"/"+leaseName)
					return tt.instances, nil
				},
				getMac: func(name string) (*rackv1alpha1.MacNode, error) {
					assert.Equal(t, "mac-1", name)
					if tt.mac == nil {
						return nil, errNotFound
					}
					return tt.mac, nil
				},
				getNode: func(name string) (*corev1.Node, error) {
					if tt.node == nil {
						return nil, errNotFound
					}
					return tt.node, nil
				},
				readNode: func(_ context.Context, name string) (*corev1.Node, error) {
					calls = append(calls, "read "+name)
					if tt.nodeNow != nil {
						return tt.nodeNow, nil
					}
					return tt.node, nil
				},
				stop: func(_ context.Context, instance *instancev1alpha1.MacOSInstance, reason string) error {
					return call("stop " + instance.Name + " " + reason)
				},
				deleteLease: func(_ context.Context, lease *rackv1alpha1.MacNodeLease) error { return call("delete " + lease.Name) },
				updateState: func(_ context.Context, _, lease *rackv1alpha1.MacNodeLease) error {
					s := "status " + string(lease.Status.Phase) + " " + lease.Status.EarliestReleaseAt.UTC().Format(time.RFC3339)
					for _, c := range lease.Status.Conditions {
						if slices.Contains(original.Status.Conditions, c) {
							continue
						}
						s += ": " + c.Type + "=" + string(c.Status) + ": " + c.Reason + ": " + c.Message
					}
					return call(s)
				},
				release: func(_ context.Context, lease *rackv1alpha1.MacNodeLease, taints []string) error {
					s := "release " + lease.Name
					for _, taint := range taints {
						s += " " + taint
					}
					return call(s)
				},
				released: func(lease *rackv1alpha1.MacNodeLease) { calls = append(calls, "released "+lease.Name) },
				expired:  func(lease *rackv1alpha1.MacNodeLease) { calls = append(calls, "expired "+lease.Name) },
			}
			due, err := l.reconcile(t.Context(), "acme/a")
			if tt.err == nil {
				require.NoError(t, err)
				assert.Equal(t, tt.due, due)
			} else {
				require.ErrorIs(t, err, tt.err)
			}
			assert.Equal(t, tt.calls, calls)
			assert.Equal(t, original, tt.lease, "the cache was changed")
		})
	}
}

// Constant writes of a tenant to a lease do not keep it from expiring, but may change its expiry.
func TestExpiryOfALeaseThatChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*rackv1alpha1.MacNodeLease)
		deleted bool
	}{
		"its metadata":     {func(*rackv1alpha1.MacNodeLease) {}, true},
		"its expiry":       {expires(9 * 24 * time.Hour), false},
		"it never expires": {func(l *rackv1alpha1.MacNodeLease) { l.Spec.ExpireAfter = nil }, false},
		"it was recreated": {func(l *rackv1alpha1.MacNodeLease) { l.UID = "another" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			lease := aLease("a", 0, boundAt(48*time.Hour), expires(48*time.Hour))
			version, deleted := 1, false
			lease.ResourceVersion = "1"
			l := &lifecycle{
				now:         func() time.Time { return noon },
				getLease:    func(string, string) (*rackv1alpha1.MacNodeLease, error) { return lease, nil },
				instancesOf: func(string, string) ([]*instancev1alpha1.MacOSInstance, error) { return nil, nil },
				getMac:      func(string) (*rackv1alpha1.MacNode, error) { return nil, errNotFound },
				readLease: func(context.Context, string, string) (*rackv1alpha1.MacNodeLease, error) {
					current := lease.DeepCopy()
					tt.change(current)
					current.ResourceVersion = strconv.Itoa(version)
					return current, nil
				},
				deleteLease: func(_ context.Context, l *rackv1alpha1.MacNodeLease) error {
					if version++; version < 5 {
						return apierrors.NewConflict(rackv1alpha1.Resource("macnodeleases"), "a", errors.New("the precondition"))
					}
					assert.Equal(t, strconv.Itoa(version-1), l.ResourceVersion)
					deleted = true
					return nil
				},
				expired: func(*rackv1alpha1.MacNodeLease) {},
			}
			_, err := l.reconcile(t.Context(), "acme/a")
			require.NoError(t, err)
			assert.Equal(t, tt.deleted, deleted)
		})
	}
}

// Instances are stopped even if the floor or the Mac's health cannot be reported.
func TestStopDoesNotWaitForReports(t *testing.T) {
	unavailable := errors.New("unavailable")
	for name, lease := range map[string]*rackv1alpha1.MacNodeLease{
		"held, with a floor to restore": aLease("a", 0, boundAt(time.Hour), slots("vm"), heldAt(0), func(l *rackv1alpha1.MacNodeLease) { l.Status.EarliestReleaseAt = nil }),
		"held, past the floor":          aLease("a", 0, boundAt(30*time.Hour), slots("vm"), heldAt(0)),
	} {
		t.Run(name, func(t *testing.T) {
			var stopped []string
			l := &lifecycle{
				now:      func() time.Time { return noon },
				getLease: func(string, string) (*rackv1alpha1.MacNodeLease, error) { return lease, nil },
				instancesOf: func(string, string) ([]*instancev1alpha1.MacOSInstance, error) {
					return []*instancev1alpha1.MacOSInstance{anInstance("vm", 48*time.Hour)}, nil
				},
				getMac: func(string) (*rackv1alpha1.MacNode, error) { return nil, unavailable },
				stop: func(_ context.Context, i *instancev1alpha1.MacOSInstance, _ string) error {
					stopped = append(stopped, i.Name)
					return nil
				},
				updateState: func(_ context.Context, _, _ *rackv1alpha1.MacNodeLease) error { return unavailable },
			}
			_, err := l.reconcile(t.Context(), "acme/a")
			require.ErrorIs(t, err, unavailable)
			assert.Equal(t, []string{"vm"}, stopped)
		})
	}
}

func TestDescribe(t *testing.T) {
	waits := func(message string) func(*rackv1alpha1.MacNodeLease) {
		return func(lease *rackv1alpha1.MacNodeLease) {
			lease.Status.Conditions = []metav1.Condition{{Type: "Bound", Status: metav1.ConditionFalse, Message: message}}
		}
	}
	macReady := func(status metav1.ConditionStatus, message string) func(*rackv1alpha1.MacNodeLease) {
		return func(lease *rackv1alpha1.MacNodeLease) {
			lease.Status.Conditions = []metav1.Condition{{Type: "MacReady", Status: status, Message: message}}
		}
	}
	bound, held := aLease("a", 0, boundAt(time.Hour)), aLease("a", 0, boundAt(time.Hour), heldAt(0))
	releasing := aLease("a", 0, boundAt(time.Hour), func(lease *rackv1alpha1.MacNodeLease) { lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing })
	for _, tt := range []struct {
		name            string
		before, after   *rackv1alpha1.MacNodeLease
		reason, message string
	}{
		{name: "new", after: bound},
		{name: "gone", before: bound},
		{name: "unchanged", before: bound, after: bound},
		{name: "another of the same name", before: aLease("a", 0), after: aLease("a", 0, boundAt(0), func(l *rackv1alpha1.MacNodeLease) { l.UID = "new" })},
		{name: "bound", before: aLease("a", 0), after: bound, reason: "Bound",
			message: "bound to Mac S-mac-1 (MacNode mac-1) until 2026-08-02T11:00:00Z at least"},
		{name: "held", before: bound, after: held, reason: "Held",
			message: "deleted before its floor: the lease keeps Mac S-mac-1 until 2026-08-02T11:00:00Z and is then released automatically; its instances are stopped"},
		{name: "releasing", before: held, after: releasing, reason: "Releasing",
			message: "the floor passed at 2026-08-02T11:00:00Z: Mac S-mac-1 is being emptied and scrubbed, and then released"},
		{name: "waiting", before: aLease("a", 0), after: aLease("a", 0, waits("none is free")), reason: "WaitingForMac", message: "none is free"},
		{name: "waiting for something else", before: aLease("a", 0, waits("none is free")), after: aLease("a", 0, waits("still none")), reason: "WaitingForMac", message: "still none"},
		{name: "the Mac is offline", before: bound, after: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away")), reason: "MacNotReady", message: "away"},
		{name: "the Mac is still offline", before: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away")), after: aLease("a", 1, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away"))},
		{name: "the Mac is back", before: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionFalse, "away")),
			after: aLease("a", 0, boundAt(time.Hour), macReady(metav1.ConditionTrue, "back")), reason: "MacReady", message: "back"},
		{name: "still waiting", before: aLease("a", 0, waits("none is free")), after: aLease("a", 1, waits("none is free"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reason, message := describe(tt.before, tt.after)
			assert.Equal(t, tt.reason, reason)
			assert.Equal(t, tt.message, message)
		})
	}
}
