package tenancy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func record(revision string, at time.Time, count int64) *rack.AuditRecord {
	return &rack.AuditRecord{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", ResourceVersion: revision}, Time: metav1.NewMicroTime(at), Details: rack.AuditDetails{Count: count}}
}

func TestReadableRecords(t *testing.T) {
	var (
		before     = record("99", noon.Add(time.Hour), 0) // by a clock that was fast
		first      = record("100", noon, 0)
		after      = record("101", noon.Add(time.Second), 0)
		late       = record("102", noon.Add(time.Minute), 7)
		itsOwn     = record("103", noon.Add(time.Hour), 7)
		unreadable = record("none", noon, 0)
	)
	all := []*rack.AuditRecord{before, first, after, late, itsOwn, unreadable}
	for name, tt := range map[string]struct {
		uid     types.UID
		key     []byte
		auditor bool
		want    []*rack.AuditRecord
	}{
		"the current owner's":        {uid: "2", key: encode("2", noon), want: []*rack.AuditRecord{first, after, itsOwn}},
		"an earlier owner's":         {uid: "3", key: encode("2", noon)},
		"an owner without leases":    {uid: "2"},
		"a missing namespace":        {key: encode("2", noon)},
		"neither":                    {},
		"an invalid key":             {uid: "2", key: []byte("2")},
		"an auditor's or an admin's": {uid: "3", key: encode("2", noon), auditor: true, want: all},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFilter(Lookup{Namespaces: func(_ context.Context, name string) (types.UID, error) {
				assert.Equal(t, "acme", name)
				return tt.uid, nil
			}}, func(_ context.Context, kind, id string) ([]byte, int64, error) {
				assert.Equal(t, []string{IndexOwner, "acme"}, []string{kind, id})
				if tt.key == nil {
					return nil, 0, nil
				}
				return tt.key, 100, nil
			}, authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				assert.Equal(t, []string{"list", "rack.macrack.io", "v1alpha1", "auditrecords", ""}, []string{a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetNamespace()})
				if tt.auditor {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionDeny, "", nil
			}))
			selector, err := f.ReadableRecords(requestOf(t, "acme"))
			require.NoError(t, err)
			var got []*rack.AuditRecord
			for _, r := range all {
				predicate := storage.SelectionPredicate{Label: labels.Everything(), Field: selector, GetAttrs: auditrecord.GetAttrs}
				visible, err := predicate.Matches(r)
				require.NoError(t, err)
				if visible {
					got = append(got, r)
				}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// requestOf returns the context of a request of a user in a namespace.
func requestOf(t *testing.T, namespace string) context.Context {
	return genericapirequest.WithUser(genericapirequest.WithNamespace(t.Context(), namespace), &user.DefaultInfo{Name: "acme"})
}

// The use of all namespaces is a permission of its own.
func TestReadableUsage(t *testing.T) {
	for resource, all := range map[string]bool{"usagereports": true, "auditrecords": false} {
		f := NewFilter(Lookup{Namespaces: func(context.Context, string) (types.UID, error) { return "2", nil }},
			func(context.Context, string, string) ([]byte, int64, error) { return encode("2", noon), 100, nil },
			authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetVerb() == "list" && a.GetNamespace() == "" && a.GetResource() == resource {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionDeny, "", nil
			}))
		selector, err := f.ReadableUsage(requestOf(t, "acme"))
		require.NoError(t, err)
		assert.Equal(t, all, auditrecord.IsSelected(selector, 99), resource)
		assert.True(t, auditrecord.IsSelected(selector, 100))
	}
}

func TestReadableRecordsFailsClosed(t *testing.T) {
	broken := errors.New("away")
	var namespaceErr, keyErr, authorizerErr error
	f := NewFilter(
		Lookup{Namespaces: func(context.Context, string) (types.UID, error) { return "2", namespaceErr }},
		func(context.Context, string, string) ([]byte, int64, error) { return nil, 0, keyErr },
		authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", authorizerErr
		}),
	)
	for _, err := range []*error{&namespaceErr, &keyErr, &authorizerErr} {
		*err = broken
		_, got := f.ReadableRecords(requestOf(t, "acme"))
		assert.ErrorIs(t, got, broken)
		*err = nil
	}
	namespaceErr = broken
	selector, err := f.ReadableRecords(t.Context())
	assert.NoError(t, err)
	assert.Nil(t, selector, "a request for all namespaces is authorized for all of them")
}

// A stale cache shows no user the objects of an earlier namespace, and does not give the index key
// back to that namespace.
func TestLaggingCache(t *testing.T) {
	for name, tt := range map[string]struct {
		cached, key, live types.UID
		want              string
		asks              int
	}{
		"the owner in the key":                    {"2", "2", "3", "status.namespaceUID=2", 0},
		"another replica has seen the next owner": {"1", "2", "2", "status.namespaceUID=2", 1},
		"an owner without leases":                 {"2", "1", "2", "status.namespaceUID=2", 1},
		"a deleted namespace":                     {"1", "2", "", "<nothing>", 1},
		"a name without leases":                   {"2", "", "2", "status.namespaceUID=2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			asks := 0
			lookup := Lookup{
				Namespaces: func(context.Context, string) (types.UID, error) { return tt.cached, nil },
				Live:       func(context.Context, string) (types.UID, error) { asks++; return tt.live, nil },
			}
			f := NewFilter(lookup, func(context.Context, string, string) ([]byte, int64, error) {
				if tt.key == "" {
					return nil, 0, nil
				}
				return encode(tt.key, noon), 100, nil
			}, authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionDeny, "", nil
			}))
			for range 2 { // the answers are cached
				selector, err := f.Objects(requestOf(t, "acme"))
				require.NoError(t, err)
				if tt.want == "<nothing>" {
					assert.False(t, selector.Matches(fields.Set{"status.namespaceUID": string(tt.cached)}))
				} else {
					assert.Equal(t, tt.want, selector.String())
				}
			}
			assert.Equal(t, tt.asks, asks)
			uid, err := confirm(t.Context(), lookup.Live, "acme", tt.cached, tt.key)
			require.NoError(t, err)
			if tt.cached == tt.key {
				assert.Equal(t, tt.cached, uid)
			} else {
				assert.Equal(t, tt.live, uid, "of a new lease")
			}
		})
	}
}
