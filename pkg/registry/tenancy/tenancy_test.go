package tenancy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/apis/rack"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func record(revision string, at time.Time, count int64) *rack.AuditRecord {
	return &rack.AuditRecord{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", ResourceVersion: revision}, Time: metav1.NewMicroTime(at), Details: rack.AuditDetails{Count: count}}
}

func TestVisible(t *testing.T) {
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
		seesAll bool
		want    []*rack.AuditRecord
	}{
		"this life's":                {uid: "2", key: encode("2", noon), want: []*rack.AuditRecord{first, after, itsOwn}},
		"an earlier life's":          {uid: "3", key: encode("2", noon)},
		"a life without leases":      {uid: "2"},
		"a namespace that is not":    {key: encode("2", noon)},
		"neither":                    {},
		"an unwritten key":           {uid: "2", key: []byte("2")},
		"an auditor's or an admin's": {uid: "3", key: encode("2", noon), seesAll: true, want: all},
	} {
		t.Run(name, func(t *testing.T) {
			l := &Lives{
				Namespaces: func(_ context.Context, name string) (types.UID, error) {
					assert.Equal(t, "acme", name)
					return tt.uid, nil
				},
				Key: func(_ context.Context, kind, id string) ([]byte, int64, error) {
					assert.Equal(t, []string{Kind, "acme"}, []string{kind, id})
					if tt.key == nil {
						return nil, 0, nil
					}
					return tt.key, 100, nil
				},
				SeesAll: func(context.Context) (bool, error) { return tt.seesAll, nil },
			}
			visible, err := l.Visible(genericapirequest.WithNamespace(t.Context(), "acme"))
			require.NoError(t, err)
			var got []*rack.AuditRecord
			for _, r := range all {
				if visible == nil || visible(r) {
					got = append(got, r)
				}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestVisibleFailsClosed(t *testing.T) {
	broken := errors.New("away")
	l := &Lives{
		Namespaces: func(context.Context, string) (types.UID, error) { return "", broken },
		SeesAll:    func(context.Context) (bool, error) { return false, nil },
	}
	ctx := genericapirequest.WithNamespace(t.Context(), "acme")
	_, err := l.Visible(ctx)
	assert.ErrorIs(t, err, broken)
	l.Namespaces = func(context.Context, string) (types.UID, error) { return "2", nil }
	l.Key = func(context.Context, string, string) ([]byte, int64, error) { return nil, 0, broken }
	_, err = l.Visible(ctx)
	assert.ErrorIs(t, err, broken)
	l.SeesAll = func(context.Context) (bool, error) { return false, broken }
	_, err = l.Visible(ctx)
	assert.ErrorIs(t, err, broken)
	visible, err := l.Visible(t.Context())
	assert.NoError(t, err)
	assert.Nil(t, visible, "all namespaces are for those who may ask for them")
}
