package macnodelease

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
)

func TestHeld(t *testing.T) {
	for _, tt := range []scenario{
		{
			name: "held: instances from before the deletion are stopped, later ones are not", lease: olderLease(boundAt(2*time.Hour), slots("before"), heldAt(time.Hour), slots("after")),
			instances: []*instancev1alpha1.MacOSInstance{
				anInstance("before", 0), anInstance("after", 90*time.Minute), anInstance("unlisted", 90*time.Minute),
			},
			calls: []string{"stop before LeaseHeld"},
			due:   noon.Add(22 * time.Hour),
		},
		{
			name: "held: ended instances and those already asked to stop are left alone", lease: olderLease(boundAt(2*time.Hour), slots("stopped", "failed", "asked", "earlier"), heldAt(time.Hour)),
			instances: []*instancev1alpha1.MacOSInstance{
				anInstance("stopped", 90*time.Minute, instancePhase(instancev1alpha1.MacOSInstanceStopped)),
				anInstance("failed", 90*time.Minute, instancePhase(instancev1alpha1.MacOSInstanceFailed)),
				anInstance("asked", 90*time.Minute, stopAsked),
				anInstance("earlier", 90*time.Minute, ofEarlierLease),
			},
			due: noon.Add(22 * time.Hour),
		},
		{
			name: "held: an instance is gone", lease: olderLease(boundAt(2*time.Hour), slots("vm"), heldAt(time.Hour)), fail: errNotFound,
			instances: []*instancev1alpha1.MacOSInstance{anInstance("vm", 90*time.Minute)},
			calls:     []string{"stop vm LeaseHeld"}, due: noon.Add(22 * time.Hour),
		},
		{
			name: "held: an instance that cannot be stopped does not keep the other running", lease: olderLease(boundAt(2*time.Hour), slots("vm-1", "vm-2"), heldAt(time.Hour)), fail: errRefused,
			instances: []*instancev1alpha1.MacOSInstance{anInstance("vm-1", 90*time.Minute), anInstance("vm-2", 90*time.Minute)},
			calls:     []string{"stop vm-1 LeaseHeld", "stop vm-2 LeaseHeld"}, err: errRefused, due: noon.Add(22 * time.Hour),
		},
		{name: "held, a second before the floor", lease: olderLease(boundAt(day-time.Second), heldAt(time.Hour)), due: noon.Add(time.Second)},
		{name: "held, at the floor", lease: olderLease(boundAt(day), heldAt(time.Hour)), calls: []string{"status Releasing 2026-08-01T12:00:00Z"}},
		{name: "held, at the floor that the server does not see yet", lease: olderLease(boundAt(day), heldAt(time.Hour)), fail: errForbidden,
			calls: []string{"status Releasing 2026-08-01T12:00:00Z"}, due: noon.Add(askAgain)},
		{name: "held, and the server fails", lease: olderLease(boundAt(day), heldAt(time.Hour)), fail: errTimeout,
			calls: []string{"status Releasing 2026-08-01T12:00:00Z"}, err: errTimeout},
		{name: "held, the floor was lengthened", lease: olderLease(boundAt(30*time.Hour), heldAt(time.Hour), floorAt(noon.Add(time.Hour))), due: noon.Add(time.Hour)},
	} {
		t.Run(tt.name, tt.run)
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
			c := testutil.NewCluster(t, noon)
			c.Add(lease, aMac("mac-1", offline))
			c.Cache(anInstance("vm", 48*time.Hour))
			var stopped []string
			c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
				if _, ok := object.(*instancev1alpha1.MacOSInstanceStop); ok {
					stopped = append(stopped, testutil.Name(action))
					return "", nil
				}
				return "", unavailable
			})
			l := newLifecycle(c.Dependencies)
			_, err := l.reconcile(t.Context(), "acme/a")
			require.ErrorIs(t, err, unavailable)
			assert.Equal(t, []string{"vm"}, stopped)
		})
	}
}
