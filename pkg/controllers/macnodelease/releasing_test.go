package macnodelease

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

func TestReleasing(t *testing.T) {
	const (
		status    = "status Releasing 2026-08-01T06:00:00Z: Released=False: "
		scrubbing = "Scrubbing: waiting for Mac S-mac-1 to report a complete scrub"
		tainting  = "TaintingNode: waiting for Node mac-1 to be tainted macrack.io/unleased, so that nothing is scheduled there"
	)
	for _, tt := range []scenario{
		{
			name: "releasing: everything is stopped", lease: releasingLease(heldAt(time.Hour), leasePhase(rackv1alpha1.MacNodeLeaseReleasing), slots("after")),
			instances: []*instancev1alpha1.MacOSInstance{anInstance("after", 0), anInstance("asked", 0, stopAsked), anInstance("earlier", 0, ofEarlierLease)},
			mac:       scrubbedMac(), node: aNode(rules.UnleasedTaint()),
			calls: []string{"stop after LeaseReleasing", "status Releasing 2026-08-01T06:00:00Z: Released=False: StoppingInstances: waiting for instances to stop: after"},
		},
		{name: "releasing: before the floor, as this clock sees it", lease: releasingLease(floorAt(noon.Add(time.Hour))), mac: scrubbedMac(), node: aNode(rules.UnleasedTaint()), due: noon.Add(time.Hour)},
		{name: "releasing: slots are taken", lease: releasingLease(slots("vm", "other")), mac: scrubbedMac(), node: aNode(rules.UnleasedTaint()),
			calls: []string{status + "StoppingInstances: waiting for instances to stop: vm, other"}},
		{name: "releasing: not scrubbed", lease: releasingLease(), mac: scrubbedMac(func(mac *rackv1alpha1.MacNode) { mac.Status.Scrub = nil }), node: aNode(rules.UnleasedTaint()),
			calls: []string{status + scrubbing}},
		{name: "releasing: not scrubbed, which is already reported", lease: releasingLease(condition("Released", metav1.ConditionFalse, "Scrubbing", strings.TrimPrefix(scrubbing, "Scrubbing: "))),
			mac: scrubbedMac(func(mac *rackv1alpha1.MacNode) { mac.Status.Scrub = nil }), node: aNode(rules.UnleasedTaint())},
		{name: "releasing: a VM runs", lease: releasingLease(), mac: scrubbedMac(func(mac *rackv1alpha1.MacNode) { mac.Status.RunningVMs = 1 }), node: aNode(rules.UnleasedTaint()),
			calls: []string{status + scrubbing}},
		{name: "releasing: the scrub failed", lease: releasingLease(), mac: scrubbedMac(func(mac *rackv1alpha1.MacNode) {
			mac.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionFalse, Reason: rackv1alpha1.ReasonScrubFailed, Message: "a disk is busy"}}
		}), node: aNode(rules.UnleasedTaint()),
			calls: []string{status + "ScrubFailed: waiting for Mac S-mac-1 to report a complete scrub; the last scrub failed: a disk is busy"}},
		{name: "releasing: the Mac is offline", lease: releasingLease(slots("vm")), mac: scrubbedMac(offline), node: aNode(rules.UnleasedTaint()),
			calls: []string{status + "MacOffline: waiting for instances to stop: vm; Mac S-mac-1 is offline (silent)"}},
		{name: "releasing: the Mac is unknown", lease: releasingLease(), node: aNode(rules.UnleasedTaint()), err: apierrors.NewNotFound(rackv1alpha1.Resource("macnode"), "mac-1")},
		{name: "releasing: the Node does not exist", lease: releasingLease(), mac: scrubbedMac(), calls: []string{status + tainting}},
		{name: "releasing: the Node still has the tenant's taint", lease: releasingLease(), mac: scrubbedMac(), node: aNode(rules.TenantTaint("acme")), calls: []string{status + tainting}},
		{name: "releasing: the Node has both taints", lease: releasingLease(), mac: scrubbedMac(), node: aNode(rules.TenantTaint("acme"), rules.UnleasedTaint()), calls: []string{status + tainting}},
		{
			name: "releasing: the cached Node is stale", lease: releasingLease(), mac: scrubbedMac(), node: aNode(rules.UnleasedTaint()), nodeNow: aNode(),
			calls: []string{"read mac-1"},
		},
		{
			name: "released, with the taints read back", lease: releasingLease(), mac: scrubbedMac(), node: aNode(rules.UnleasedTaint()),
			nodeNow: aNode(rules.UnleasedTaint(), corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute}),
			calls:   []string{"read mac-1", "release a a=b:NoExecute macrack.io/unleased:NoSchedule", "event Released"},
		},
		{
			name: "released meanwhile", lease: releasingLease(), mac: scrubbedMac(), node: aNode(rules.UnleasedTaint()), fail: errNotFound,
			calls: []string{"read mac-1", "release a macrack.io/unleased:NoSchedule"},
		},
		{
			name: "the release is refused", lease: releasingLease(), mac: scrubbedMac(), node: aNode(rules.UnleasedTaint()), fail: errForbidden,
			calls: []string{"read mac-1", "release a macrack.io/unleased:NoSchedule"}, err: errForbidden,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
