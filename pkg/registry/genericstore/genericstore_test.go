package genericstore

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"

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

// A watch by the field of the index gets the events of its value only, without a look at the
// others.
func TestIndex(t *testing.T) {
	index := &Index{Field: "status.nodeName", Value: func(obj runtime.Object) string { return obj.(*rack.MacNodeLease).Status.NodeName }}
	store, options := &genericregistry.Store{}, &generic.StoreOptions{AttrFunc: func(runtime.Object) (labels.Set, fields.Set, error) {
		return nil, fields.Set{"status.nodeName": "mac-2"}, nil
	}}
	index.apply(store, options)
	lease := &rack.MacNodeLease{Status: rack.MacNodeLeaseStatus{NodeName: "mac-1"}}
	assert.Equal(t, "mac-1", options.TriggerFunc["status.nodeName"](lease))
	values, err := (*options.Indexers)["f:status.nodeName"](lease)
	assert.NoError(t, err)
	assert.Equal(t, []string{"mac-1"}, values)

	predicate := store.PredicateFunc(labels.Everything(), fields.ParseSelectorOrDie("status.nodeName=mac-1,spec.leaseName=build"))
	assert.Equal(t, []storage.MatchValue{{IndexName: "f:status.nodeName", Value: "mac-1"}}, predicate.MatcherIndex(t.Context()))
	matches, err := predicate.Matches(lease)
	assert.NoError(t, err)
	assert.False(t, matches, "the attributes decide")
	predicate = store.PredicateFunc(labels.Everything(), fields.Everything())
	assert.Empty(t, predicate.MatcherIndex(t.Context()))
}
