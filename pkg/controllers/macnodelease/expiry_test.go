package macnodelease

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers/testutil"
)

func TestExpiry(t *testing.T) {
	for _, tt := range []scenario{
		{name: "bound", lease: olderLease(boundAt(time.Hour)), instances: []*instancev1alpha1.MacOSInstance{anInstance("vm", 0)}},
		{name: "bound, past the floor", lease: olderLease(boundAt(30 * time.Hour)), instances: []*instancev1alpha1.MacOSInstance{anInstance("vm", 0)}},
		{name: "expires later", lease: olderLease(boundAt(time.Hour), expires(2*day)), due: noon.Add(2*day - time.Hour)},
		{name: "expires now", lease: olderLease(boundAt(2*day), expires(2*day)), calls: []string{"delete a", "event Expired"}},
		{name: "expires, and has already been deleted", lease: olderLease(boundAt(2*day), expires(2*day)), fail: errNotFound, calls: []string{"delete a"}},
		{name: "expires, and cannot be deleted", lease: olderLease(boundAt(2*day), expires(2*day)), fail: errRefused, calls: []string{"delete a"}, err: errRefused},
		{
			name:  "never expires before its floor",
			lease: olderLease(boundAt(2*day), expires(2*day), minimumDuration(3*day), floorAt(noon.Add(day))),
			due:   noon.Add(day),
		},
	} {
		t.Run(tt.name, tt.run)
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
			lease.ResourceVersion = "1"
			version, deleted := 1, false
			c := testutil.NewCluster(t, noon)
			c.Add(lease)
			c.Record(func(action clienttesting.Action, object runtime.Object) (string, error) {
				if action.GetVerb() == "get" {
					current := object.(*rackv1alpha1.MacNodeLease)
					tt.change(current)
					current.ResourceVersion = strconv.Itoa(version)
					return "", nil
				}
				c.Serve(lease) // the fake deletes it despite the conflict
				if version++; version < 5 {
					return "", apierrors.NewConflict(rackv1alpha1.Resource("macnodeleases"), "a", errors.New("the precondition"))
				}
				sent := action.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions
				assert.Equal(t, strconv.Itoa(version-1), *sent.ResourceVersion)
				deleted = true
				return "", nil
			})
			l := newLifecycle(c.Dependencies)
			_, err := l.reconcile(t.Context(), "acme/a")
			require.NoError(t, err)
			assert.Equal(t, tt.deleted, deleted)
		})
	}
}
