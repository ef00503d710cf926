package macosinstance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
)

// An instance that is created on a lease that is Held is younger than the hold, in the seconds in which times are stored.
func TestCreatedAt(t *testing.T) {
	heldAt := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	open, held := &rack.MacNodeLease{}, &rack.MacNodeLease{Status: rack.MacNodeLeaseStatus{HeldAt: &metav1.Time{Time: heldAt}}}
	assert.Equal(t, heldAt, createdAt(heldAt, open))
	assert.Equal(t, heldAt.Add(time.Second), createdAt(heldAt, held))
	assert.Equal(t, heldAt.Add(time.Second), createdAt(heldAt.Add(time.Second-1), held), "the same second")
	assert.Equal(t, heldAt.Add(time.Second), createdAt(heldAt.Add(time.Second), held))
	assert.Equal(t, heldAt.Add(7*time.Hour), createdAt(heldAt.Add(7*time.Hour), held))
}
