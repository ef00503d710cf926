package macnodelease

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/rejection"
)

// A tenant who deletes a lease just as it is bound has not tampered with its floor.
func TestDeleteWhileBound(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	plan := NewPlanner(clock, fleetclock.New(clock), nil)
	var refused *rejection.Error

	lease := stored()
	err := plan(t.Context(), nil, lease, nil)
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.ErrorContains(t, err, "it was bound to Mac")
	assert.ErrorAs(t, err, &boundMeanwhile{}, "the deletion starts again")
	assert.False(t, errors.As(err, &refused), "this is not for the ledger")

	lease.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	err = plan(t.Context(), nil, lease, nil)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorAs(t, err, &refused, "this is")
}
