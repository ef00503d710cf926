package genericstore

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/rejection"
)

type recorder struct{ records []*rack.AuditRecord }

func (r *recorder) Reject(_ context.Context, record *rack.AuditRecord) error {
	r.records = append(r.records, record)
	return nil
}

// No tenant learns off the record that a Mac is another's: not from the second plan of a dry run
// either, which may be refused after the first was not.
func TestRefusalOfSecondPlanIsRecorded(t *testing.T) {
	leases := rack.Resource("macnodeleases")
	refusal := rejection.Forbidden(leases, "build", errors.New("the Mac is leased"), &rack.AuditRecord{Type: rack.CrossTenantRejected})
	recorder := &recorder{}
	r := &REST{Store: &rejection.Store{Store: &genericregistry.Store{DefaultQualifiedResource: leases}, Recorder: recorder}}
	r.planned = func(context.Context, schema.GroupResource, runtime.Object, runtime.Object) (runtime.Object, error) {
		return nil, refusal
	}
	_, err := r.created(t.Context(), &rack.MacNodeLease{}, []string{metav1.DryRunAll})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.Len(t, recorder.records, 1)

	lease := &rack.MacNodeLease{}
	out, err := r.created(t.Context(), lease, nil)
	assert.NoError(t, err)
	assert.Same(t, lease, out, "a real request is planned by the storage")
}
