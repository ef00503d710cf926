package usagereport

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/rules"
)

var now = time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC)

type source struct {
	clock   *testingclock.FakePassiveClock
	leases  []ledger.Lease
	takes   time.Duration
	reading func(context.Context)
	err     error
	reads   int
}

func (s *source) Leases(ctx context.Context) ([]ledger.Lease, rack.ComplianceReportStatus, error) {
	s.reads++
	if s.reading != nil {
		s.reading(ctx)
	}
	s.clock.SetTime(s.clock.Now().Add(s.takes))
	return s.leases, rack.ComplianceReportStatus{}, s.err
}

// newSource has a lease of each tenant, created at revisions 1, 2 and so on, that has run for ten
// hours.
func newSource(tenants ...string) *source {
	s := &source{clock: testingclock.NewFakePassiveClock(now)}
	for i, tenant := range tenants {
		s.leases = append(s.leases, ledger.Lease{
			Reference: rack.AuditReference{Namespace: tenant, Name: "lease-" + strconv.Itoa(i+1)}, Created: int64(i + 1), ClassName: "base",
			LeaseTimes: rules.LeaseTimes{BoundAt: now.Add(-10 * time.Hour), Floor: now.Add(14 * time.Hour)},
		})
	}
	return s
}

func everything(context.Context) (fields.Selector, error) { return nil, nil }

func in(t *testing.T, namespace string) context.Context {
	return genericapirequest.WithNamespace(t.Context(), namespace)
}

func TestGet(t *testing.T) {
	s := newSource("acme", "globex", "acme")
	r := NewREST(s.clock, s, everything)
	obj, err := r.Get(in(t, "acme"), "7d", nil)
	require.NoError(t, err)
	report := obj.(*rack.UsageReport)
	assert.Equal(t, "acme", report.Namespace)
	assert.Equal(t, "7d", report.Name)
	assert.EqualValues(t, 2, report.Status.Total.Leases)
	assert.EqualValues(t, 2, report.Status.Total.BillableDays)
	table, err := r.ConvertToTable(t.Context(), report, nil)
	require.NoError(t, err)
	assert.Equal(t, []any{"7d", int64(2), int64(2), "0h00m", "2026-09-15T12:00:00Z", "20h00m", int64(2), int64(0)}, table.Rows[0].Cells)

	obj, err = r.Get(in(t, "initech"), "2026-08", nil)
	require.NoError(t, err)
	assert.Zero(t, obj.(*rack.UsageReport).Status.Total, "a tenant without leases has used nothing")
}

func TestGetRefuses(t *testing.T) {
	s := newSource("acme")
	_, err := NewREST(s.clock, s, everything).Get(in(t, "acme"), "yesterday", nil)
	assert.True(t, apierrors.IsNotFound(err))
	assert.ErrorContains(t, err, `usagereports.rack.macrack.io "yesterday" not found: a report is named after its window`)
	assert.Zero(t, s.reads)

	s.err = errors.New("etcd is down")
	_, err = NewREST(s.clock, s, everything).Get(in(t, "acme"), "7d", nil)
	assert.ErrorIs(t, err, s.err)

	unknown := errors.New("the namespace cannot be read")
	failing := func(context.Context) (fields.Selector, error) { return nil, unknown }
	s.reads = 0
	_, err = NewREST(s.clock, s, failing).Get(in(t, "acme"), "7d", nil)
	assert.ErrorIs(t, err, unknown)
	_, err = NewREST(s.clock, s, failing).List(in(t, "acme"), nil)
	assert.ErrorIs(t, err, unknown)
	assert.Zero(t, s.reads)
}

// Leases of an earlier namespace with the same name are hidden.
func TestLeasesOfAnEarlierNamespace(t *testing.T) {
	s := newSource("acme", "acme", "acme")
	r := NewREST(s.clock, s, func(context.Context) (fields.Selector, error) { return auditrecord.SelectSince(2, now), nil })
	obj, err := r.Get(in(t, "acme"), "7d", nil)
	require.NoError(t, err)
	status := obj.(*rack.UsageReport).Status
	require.Len(t, status.Leases, 2)
	assert.Equal(t, "lease-2", status.Leases[0].Name)
	assert.EqualValues(t, 2, status.Total.Leases)
	assert.EqualValues(t, 2, status.Classes[0].Total.BillableDays)
}

func list(t *testing.T, r *REST, namespace string, options *metainternalversion.ListOptions) (names []string, next string) {
	t.Helper()
	obj, err := r.List(in(t, namespace), options)
	require.NoError(t, err)
	list := obj.(*rack.UsageReportList)
	for _, report := range list.Items {
		names = append(names, report.Namespace+"/"+report.Name)
	}
	return names, list.Continue
}

func TestList(t *testing.T) {
	s := newSource("globex", "acme")
	s.leases[0].BoundAt, s.leases[0].Floor = now.Add(-10*24*time.Hour), now.Add(-9*24*time.Hour)
	s.leases[0].DeletedAt, s.leases[0].ReleasedAt = s.leases[0].Floor, s.leases[0].Floor
	r := NewREST(s.clock, s, everything)
	named := func(name string) *metainternalversion.ListOptions {
		return &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}
	}
	for name, test := range map[string]struct {
		namespace string
		options   *metainternalversion.ListOptions
		want      []string
	}{
		"of a tenant":                {"acme", nil, []string{"acme/today", "acme/7d", "acme/30d", "acme/month"}},
		"of a tenant without leases": {"initech", nil, []string{"initech/today", "initech/7d", "initech/30d", "initech/month"}},
		"of all with leases":         {"", nil, []string{"acme/today", "acme/7d", "acme/30d", "acme/month", "globex/30d", "globex/month"}},
		"by another name":            {"acme", named("2026-08"), []string{"acme/2026-08"}},
		"by a name, of all":          {"", named("2026-09"), []string{"acme/2026-09", "globex/2026-09"}},
		"by a name of no window":     {"acme", named("x"), nil},
		"by a label (has none)":      {"acme", &metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"a": "b"})}, nil},
		"of another namespace":       {"acme", &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "globex")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, next := list(t, r, test.namespace, test.options)
			assert.Equal(t, test.want, got)
			assert.Empty(t, next)
		})
	}
	t.Run("in pages", func(t *testing.T) {
		all, _ := list(t, r, "", nil)
		for limit := 1; limit <= len(all); limit++ {
			var got []string
			options := &metainternalversion.ListOptions{Limit: int64(limit)}
			for {
				page, next := list(t, r, "", options)
				require.LessOrEqual(t, len(page), limit)
				require.NotEmpty(t, page)
				got = append(got, page...)
				if options.Continue = next; next == "" {
					break
				}
			}
			assert.Equal(t, all, got, limit)
		}
		for _, token := range []string{"x", "YQ", "eC9hY21l"} {
			_, err := r.List(in(t, ""), &metainternalversion.ListOptions{Continue: token})
			assert.True(t, apierrors.IsBadRequest(err), token)
		}
	})
}

// Many requests share one reading, and reading takes a twentieth of the time at most.
func TestBooksAreShared(t *testing.T) {
	s := newSource("acme")
	r := NewREST(s.clock, s, everything)
	get := func(after time.Duration, reads int) {
		t.Helper()
		s.clock.SetTime(s.clock.Now().Add(after))
		_, err := r.Get(in(t, "acme"), "today", nil)
		require.NoError(t, err)
		assert.Equal(t, reads, s.reads)
	}
	get(0, 1)
	get(minimumAge-1, 1)
	s.takes = time.Second
	get(1, 2)
	get(20*time.Second-1, 2)
	get(1, 3)
	s.takes = 0
	get(-time.Hour, 4) // the clock was set back
	s.err = errors.New("etcd is down")
	_, err := r.Get(in(t, "acme"), "today", nil)
	assert.NoError(t, err, "from the book")
}

// A user who disconnects while the book is read does not waste the reading.
func TestReadingSurvivesItsRequest(t *testing.T) {
	s := newSource("acme")
	r := NewREST(s.clock, s, everything)
	ctx, cancel := context.WithCancel(in(t, "acme"))
	s.reading = func(reading context.Context) {
		cancel()
		assert.NoError(t, reading.Err())
	}
	_, err := r.Get(ctx, "today", nil)
	require.NoError(t, err)
	_, err = r.Get(in(t, "acme"), "today", nil)
	require.NoError(t, err)
	assert.Equal(t, 1, s.reads)
}

func TestRequestsThatWaitCanEnd(t *testing.T) {
	s := newSource("acme")
	r := NewREST(s.clock, s, everything)
	<-r.books.turn
	ctx, cancel := context.WithCancel(in(t, "acme"))
	cancel()
	_, err := r.Get(ctx, "today", nil)
	assert.ErrorIs(t, err, context.Canceled)
}

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func TestUnprovenLeasesAreWarnedOf(t *testing.T) {
	s := newSource("acme")
	s.leases[0].Unproven = "records are missing"
	var got warnings
	_, err := NewREST(s.clock, s, everything).Get(warning.WithWarningRecorder(in(t, "acme"), &got), "today", nil)
	require.NoError(t, err)
	assert.Equal(t, warnings{`the ledger does not prove all use of "acme" in window "today": unproven leases: 1; status.leases[*].unproven has the causes`}, got)
}
