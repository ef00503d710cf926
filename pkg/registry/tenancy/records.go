package tenancy

import (
	"context"
	"math"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
)

// ReadableRecords is a [rejection.Filter] of records. It limits a user of a namespace to the
// records since the first lease of that namespace. A user who may list the records of all
// namespaces sees all.
func (f *Filter) ReadableRecords(ctx context.Context) (fields.Selector, error) {
	return f.readable(ctx, auditrecord.Resource.Resource)
}

// ReadableUsage is ReadableRecords for reports on the use by leases: a user who may list the
// UsageReports of all namespaces sees all. The selector selects the first records of leases.
func (f *Filter) ReadableUsage(ctx context.Context) (fields.Selector, error) {
	return f.readable(ctx, "usagereports")
}

func (f *Filter) readable(ctx context.Context, resource string) (fields.Selector, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return nil, nil // authorized for all namespaces
	}
	all, err := f.isAllowed(ctx, authorizer.AttributesRecord{Verb: "list", APIGroup: v1alpha1.GroupName, Resource: resource})
	if err != nil || all {
		return nil, err
	}
	uid, err := f.lookup.Namespaces(ctx, namespace)
	if err != nil {
		return nil, err
	}
	value, revision, err := f.keys(ctx, IndexOwner, namespace)
	if err != nil {
		return nil, err
	}
	owner, began := decode(value)
	if uid == "" || owner != uid {
		revision = math.MaxInt64 // this namespace has no records yet
	}
	return auditrecord.SelectSince(revision, began), nil
}
