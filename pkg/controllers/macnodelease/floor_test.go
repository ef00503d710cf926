package macnodelease

import (
	"testing"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestFloor(t *testing.T) {
	for _, tt := range []scenario{
		{name: "the floor is too short", lease: olderLease(boundAt(time.Hour), floorAt(noon)), calls: []string{"status Bound 2026-08-02T11:00:00Z"}},
		{
			name:  "the floor is shorter than the minimum duration",
			lease: olderLease(boundAt(time.Hour), minimumDuration(2*day)),
			calls: []string{"status Bound 2026-08-03T11:00:00Z"},
		},
		{name: "the floor is gone", lease: olderLease(boundAt(time.Hour), heldAt(0), func(lease *rackv1alpha1.MacNodeLease) { lease.Status.EarliestReleaseAt = nil }),
			calls: []string{"status Held 2026-08-02T11:00:00Z"}},
		{name: "the floor is too short and cannot be restored: the real one counts", lease: olderLease(boundAt(time.Hour), heldAt(0), floorAt(noon)), fail: errForbidden,
			calls: []string{"status Held 2026-08-02T11:00:00Z"}, due: noon.Add(23 * time.Hour)},
		{name: "the floor cannot be restored just now", lease: olderLease(boundAt(time.Hour), floorAt(noon)), fail: errTimeout,
			calls: []string{"status Bound 2026-08-02T11:00:00Z"}, err: errTimeout},
		{name: "the floor of a lease that is being released is not touched", lease: releasingLease(floorAt(noon.Add(-7*day)), slots("vm")), mac: scrubbedMac(),
			calls: []string{"status Releasing 2026-07-25T12:00:00Z: Released=False: StoppingInstances: waiting for instances to stop: vm"}},
	} {
		t.Run(tt.name, tt.run)
	}
}
