package genericstrategy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func TestServerFields(t *testing.T) {
	type status struct {
		Phase    string
		HeldAt   *int
		LeaseRef []string
	}
	fields := NewServerFields[status]("heldAt", "leaseRef")
	two := 2
	old := status{Phase: "Bound", HeldAt: nil, LeaseRef: []string{"acme"}}
	written := status{Phase: "Held", HeldAt: &two, LeaseRef: []string{"globex"}}
	fields.Keep(&written, &old)
	assert.Equal(t, status{Phase: "Held", HeldAt: nil, LeaseRef: []string{"acme"}}, written)

	reset := fields.ResetFields("v1")["v1"]
	for path, want := range map[string]bool{"metadata": true, "spec": true, "status": false} {
		assert.Equal(t, want, reset.Has(fieldpath.MakePathOrDie(path)), path)
	}
	for name, want := range map[string]bool{"heldAt": true, "leaseRef": true, "phase": false} {
		assert.Equal(t, want, reset.Has(fieldpath.MakePathOrDie("status", name)), name)
	}
	assert.Panics(t, func() { NewServerFields[status]("heldat") })
}
