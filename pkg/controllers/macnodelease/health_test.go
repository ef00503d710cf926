package macnodelease

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestMacReady(t *testing.T) {
	const (
		status   = "status Releasing 2026-08-01T06:00:00Z: Released=False: "
		tainting = "TaintingNode: waiting for Node mac-1 to be tainted macrack.io/unleased, so that nothing is scheduled there"
	)
	for _, tt := range []scenario{
		{name: "bound: the Mac is offline", unreported: true, lease: olderLease(boundAt(time.Hour)), mac: aMac("mac-1", offline),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=False: Offline: Mac S-mac-1 is offline (silent); its virtual machines may still run, and the lease keeps the Mac"}},
		{name: "held: the Mac is in quarantine", unreported: true, lease: olderLease(boundAt(time.Hour), heldAt(0)),
			mac: aMac("mac-1", func(mac *rackv1alpha1.MacNode) {
				mac.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses"}
			}),
			calls: []string{"status Held 2026-08-02T11:00:00Z: MacReady=False: KernelQuotaStuck: Mac S-mac-1 is in quarantine, and no instance starts on it: the kernel refuses"}, due: noon.Add(23 * time.Hour)},
		{name: "held, past the floor: the release does not wait until the tenant is told of the Mac", unreported: true, lease: olderLease(boundAt(30*time.Hour), heldAt(0)),
			mac: aMac("mac-1", func(mac *rackv1alpha1.MacNode) {
				mac.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses"}
			}),
			calls: []string{
				"status Held 2026-08-01T06:00:00Z: MacReady=False: KernelQuotaStuck: Mac S-mac-1 is in quarantine, and no instance starts on it: the kernel refuses",
				"status Releasing 2026-08-01T06:00:00Z",
			}},
		{name: "bound: the Mac was away", lease: olderLease(boundAt(time.Hour), condition("MacReady", metav1.ConditionFalse, "Offline", "")), mac: aMac("mac-1"),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy"}},
		{name: "bound: the Mac is back online, which is already reported", mac: aMac("mac-1"),
			lease: olderLease(boundAt(time.Hour), condition("MacReady", metav1.ConditionTrue, "Ready", "Mac S-mac-1 is online and healthy"))},
		{name: "bound before leases had the condition MacReady", unreported: true, lease: olderLease(boundAt(time.Hour)), mac: aMac("mac-1"),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy"}},
		{name: "releasing: the Mac is back", lease: releasingLease(condition("MacReady", metav1.ConditionFalse, "Offline", "")), mac: scrubbedMac(),
			calls: []string{"status Releasing 2026-08-01T06:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy", status + tainting}},
		{name: "bound: the spec has changed since", mac: aMac("mac-1"),
			lease: olderLease(boundAt(time.Hour), condition("MacReady", metav1.ConditionTrue, "Ready", "Mac S-mac-1 is online and healthy"), func(lease *rackv1alpha1.MacNodeLease) { lease.Generation = 2 }),
			calls: []string{"status Bound 2026-08-02T11:00:00Z: MacReady=True: Ready: Mac S-mac-1 is online and healthy"}},
	} {
		t.Run(tt.name, tt.run)
	}
}
