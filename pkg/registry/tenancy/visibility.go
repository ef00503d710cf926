package tenancy

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// KeyReader returns the value of an index key and the revision of its last write, which is 0 if the
// key does not exist.
type KeyReader func(ctx context.Context, kind, id string) (value []byte, revision int64, err error)

// Filter limits a user of a namespace to the objects of its current owner.
type Filter struct {
	lookup     Lookup
	keys       KeyReader
	authorizer authorizer.Authorizer

	// cachedLive and cachedOwners cache the UIDs from the API server and from the index keys for a
	// second.
	cachedLive, cachedOwners Namespaces
}

// NewFilter returns the filter of the namespaces in lookup. It asks authorizer for the permissions
// of users.
func NewFilter(lookup Lookup, keys KeyReader, authorizer authorizer.Authorizer) *Filter {
	f := &Filter{lookup: lookup, keys: keys, authorizer: authorizer}
	if lookup.Live != nil {
		f.cachedLive = Cached(clock.RealClock{}, lookup.Live)
		f.cachedOwners = Cached(clock.RealClock{}, func(ctx context.Context, name string) (types.UID, error) {
			value, _, err := keys(ctx, IndexOwner, name)
			uid, _ := decode(value)
			return uid, err
		})
	}
	return f
}

// Objects is a [rejection.Filter] of leases and instances. For all verbs, it limits a user of a
// namespace to the objects of that namespace and hides those of an earlier namespace with the same
// name. A user with the requested permission in all namespaces sees all objects: for example
// administrators, the controllers, and the namespace controller.
func (f *Filter) Objects(ctx context.Context) (fields.Selector, error) {
	namespace := genericapirequest.NamespaceValue(ctx)
	if namespace == "" {
		return nil, nil // authorized for all namespaces
	}
	if everywhere, err := f.isAllowedEverywhere(ctx); err != nil || everywhere {
		return nil, err
	}
	uid, err := f.lookup.Namespaces(ctx, namespace)
	if err != nil {
		return nil, err
	}
	if uid, err = f.confirmed(ctx, namespace, uid); err != nil {
		return nil, err
	}
	if uid == "" {
		return fields.Nothing(), nil
	}
	return fields.OneTermEqualSelector("status.namespaceUID", string(uid)), nil
}

// confirmed returns uid, the cached UID of a namespace, or the UID from the API server if uid
// differs from that in the index key of up to a second ago.
func (f *Filter) confirmed(ctx context.Context, name string, uid types.UID) (types.UID, error) {
	if f.lookup.Live == nil {
		return uid, nil
	}
	stored, err := f.cachedOwners(ctx, name)
	if err != nil || stored == "" {
		return uid, err
	}
	return confirm(ctx, f.cachedLive, name, uid, stored)
}

// isAllowedEverywhere reports whether the user of a request has the requested permission in all
// namespaces.
func (f *Filter) isAllowedEverywhere(ctx context.Context) (bool, error) {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok {
		return false, nil
	}
	return f.isAllowed(ctx, authorizer.AttributesRecord{Verb: info.Verb, APIGroup: info.APIGroup, Resource: info.Resource, Subresource: info.Subresource})
}

func (f *Filter) isAllowed(ctx context.Context, attributes authorizer.AttributesRecord) (bool, error) {
	user, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return false, nil
	}
	attributes.User, attributes.APIVersion, attributes.ResourceRequest = user, v1alpha1.SchemeGroupVersion.Version, true
	decision, _, err := f.authorizer.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}
