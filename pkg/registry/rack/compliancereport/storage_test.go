package compliancereport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
)

var now = time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC)

// A book is a ledger in memory.
type book struct {
	heads   map[string][]byte
	records []*rack.AuditRecord
	reads   int
}

func (b *book) GetKey(_ context.Context, _, id string) ([]byte, bool, error) {
	value, ok := b.heads[id]
	return value, ok, nil
}

func (b *book) PutKey(_, id string, value []byte) error {
	b.heads[id] = value
	return nil
}

func (b *book) Create(_ context.Context, _ schema.GroupResource, obj runtime.Object) error {
	b.records = append(b.records, obj.(*rack.AuditRecord))
	return nil
}

func (b *book) Report(ctx context.Context, windows ...ledger.Window) ([]rack.ComplianceReportStatus, error) {
	b.reads++
	anchors, err := ledger.NewAnchors(b.heads, nil)
	if err != nil {
		return nil, err
	}
	return ledger.Report(ctx, ledger.Records(b.records...), anchors, windows...)
}

type reporterFunc func() error

func (f reporterFunc) Report(_ context.Context, windows ...ledger.Window) ([]rack.ComplianceReportStatus, error) {
	return make([]rack.ComplianceReportStatus, len(windows)), f()
}

// newBook has two quarantines of a Mac: 60 days and one hour ago.
func newBook(t *testing.T) *book {
	b := &book{heads: map[string][]byte{}}
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}, Spec: rack.MacNodeSpec{SerialNumber: "C07MAC1"}}
	for _, ago := range []time.Duration{60 * 24 * time.Hour, time.Hour} {
		clock := testingclock.NewFakePassiveClock(now.Add(-ago))
		require.NoError(t, ledger.Append(context.Background(), b, clock, ledger.NewNodeQuarantined(node)))
	}
	return b
}

func TestGet(t *testing.T) {
	b := newBook(t)
	r := NewREST(testingclock.NewFakePassiveClock(now), b)
	obj, err := r.Get(context.Background(), "30d", &metav1.GetOptions{})
	require.NoError(t, err)
	report := obj.(*rack.ComplianceReport)
	assert.Equal(t, "30d", report.Name)
	assert.Equal(t, metav1.NewTime(now), report.CreationTimestamp)
	assert.Equal(t, rack.ComplianceReportStatus{
		Verdict: rack.ComplianceCompliant, From: metav1.NewTime(now.Add(-30 * 24 * time.Hour)), To: metav1.NewTime(now), Records: 1, Chassis: 1,
	}, report.Status)

	table, err := r.ConvertToTable(context.Background(), report, nil)
	require.NoError(t, err)
	assert.Equal(t, "30d", table.Rows[0].Cells[0])
	assert.Equal(t, "Compliant", table.Rows[0].Cells[8])
}

func TestGetRefuses(t *testing.T) {
	b := newBook(t)
	r := NewREST(testingclock.NewFakePassiveClock(now), b)
	_, err := r.Get(context.Background(), "yesterday", nil)
	assert.True(t, apierrors.IsNotFound(err))
	assert.ErrorContains(t, err, `compliancereports.rack.macrack.io "yesterday" not found: a report is named after its window`)
	assert.Zero(t, b.reads)

	broken := errors.New("etcd is down")
	failing := reporterFunc(func() error { return broken })
	_, err = NewREST(testingclock.NewFakePassiveClock(now), failing).Get(context.Background(), "24h", nil)
	assert.ErrorIs(t, err, broken)
}

func TestList(t *testing.T) {
	b := newBook(t)
	r := NewREST(testingclock.NewFakePassiveClock(now), b)
	for name, test := range map[string]struct {
		options *metainternalversion.ListOptions
		names   []string
		reads   int
	}{
		"no options":            {nil, []string{"24h", "7d", "30d", "90d"}, 1},
		"empty options":         {&metainternalversion.ListOptions{}, []string{"24h", "7d", "30d", "90d"}, 1},
		"by a usual name":       {&metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "7d")}, []string{"7d"}, 1},
		"by another name":       {&metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "2026-08-01..2026-09-01")}, []string{"2026-08-01..2026-09-01"}, 1},
		"by a name of no use":   {&metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "x")}, nil, 0},
		"by all names but one":  {&metainternalversion.ListOptions{FieldSelector: fields.OneTermNotEqualSelector("metadata.name", "7d")}, []string{"24h", "30d", "90d"}, 1},
		"by a label (has none)": {&metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"a": "b"})}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b.reads = 0
			obj, err := r.List(context.Background(), test.options)
			require.NoError(t, err)
			var names []string
			for _, report := range obj.(*rack.ComplianceReportList).Items {
				names = append(names, report.Name)
			}
			assert.Equal(t, test.names, names)
			assert.Equal(t, test.reads, b.reads, "one pass for all windows")
		})
	}
}

func TestReportsWaitForEachOther(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := reporterFunc(func() error {
		entered <- struct{}{}
		<-leave
		return nil
	})
	r := NewREST(testingclock.NewFakePassiveClock(now), slow)
	done := make(chan error)
	go func() {
		_, err := r.Get(context.Background(), "24h", nil)
		done <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.Get(ctx, "24h", nil)
	assert.ErrorIs(t, err, context.Canceled, "who waits can leave")
	close(leave)
	require.NoError(t, <-done)
	go func() { <-entered }()
	_, err = r.Get(context.Background(), "24h", nil)
	assert.NoError(t, err)
}
