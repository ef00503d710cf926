package console

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

// read returns what the server has at a path.
func read[T any](t *testing.T, s *Server, path string) (value T) {
	t.Helper()
	code, text := get(t, s.URL()+path)
	require.Equal(t, 200, code, text)
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	return value
}

func TestCompliance(t *testing.T) {
	f := plugintest.New()
	f.MacRack.PrependReactor("list", "compliancereports", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &rackv1alpha1.ComplianceReportList{Items: []rackv1alpha1.ComplianceReport{{ObjectMeta: metav1.ObjectMeta{Name: "24h"}, Status: rackv1alpha1.ComplianceReportStatus{Verdict: rackv1alpha1.ComplianceViolated}}}}, nil
	})
	s, _ := serve(t, f, "")
	got := read[Compliance](t, s, "compliance")
	assert.Empty(t, got.Notice)
	assert.Equal(t, "24h", got.Reports[0].Window)
	assert.Equal(t, rackv1alpha1.ComplianceViolated, got.Reports[0].Status.Verdict)

	f.ForbidMacRack("list", "compliancereports", "*")
	got = read[Compliance](t, s, "compliance")
	assert.Empty(t, got.Reports)
	assert.Equal(t, "Compliance reports are not shown: you may not list compliancereports in rack.macrack.io; ask an administrator for the right", got.Notice)
}

func TestUsage(t *testing.T) {
	f := plugintest.New()
	use := rackv1alpha1.Usage{Leases: 2, BillableDays: 3, ChassisTime: metav1.Duration{Duration: 50*time.Hour + 40*time.Minute}, HeldTime: metav1.Duration{Duration: time.Hour}}
	f.MacRack.PrependReactor("list", "usagereports", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, &rackv1alpha1.UsageReportList{Items: []rackv1alpha1.UsageReport{{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "7d"},
			Status: rackv1alpha1.UsageReportStatus{Classes: []rackv1alpha1.ClassUsage{{ClassName: "base", SKU: "mini", Total: use, Running: rackv1alpha1.Usage{Leases: 1}}}}}}}, nil
	})
	f.ForbidMacRack("list", "usagereports", "")
	s, _ := serve(t, f, "", "acme")
	got := read[Usage](t, s, "usage")
	assert.Equal(t, []UsageRow{{Window: "7d", Tenant: "acme", Class: "base", SKU: "mini", Leases: 2, Running: 1, BillableDays: 3, ChassisHours: 51, HeldHours: 1}}, got.Rows)
	assert.Contains(t, got.Notice, "you may not list usagereports in rack.macrack.io in all namespaces")

	f.ForbidMacRack("list", "usagereports", "*")
	got = read[Usage](t, s, "usage")
	assert.Empty(t, got.Rows)
	assert.NotEmpty(t, got.Notice)
}

func TestLeasedOverTime(t *testing.T) {
	from := plugintest.Now.Add(-24 * time.Hour)
	lease := func(bound float64, released *metav1.Time) rackv1alpha1.LeaseUsage {
		return rackv1alpha1.LeaseUsage{BoundAt: *plugintest.At(bound), ReleasedAt: released}
	}
	assert.Equal(t, []Step{{"2026-11-29T12:00:00Z", 1}, {"2026-11-30T06:00:00Z", 2}, {"2026-11-30T09:00:00Z", 2}, {"2026-11-30T11:00:00Z", 1}},
		leasedOverTime([]rackv1alpha1.LeaseUsage{lease(-48, plugintest.At(-3)), lease(-6, plugintest.At(-1)), lease(-3, nil)}, from), "one Mac is released when another is leased")
	assert.Equal(t, []Step{{"2026-11-29T12:00:00Z", 0}}, leasedOverTime(nil, from))
}

func TestDetail(t *testing.T) {
	node := mac("mac-1", rackv1alpha1.MacNodeLeased)
	node.Status.Hardware = &rackv1alpha1.MacNodeHardware{ModelIdentifier: "Mac16,10"}
	lease := newLeaseIn("acme", "build")
	lease.Status.NodeName, lease.Status.SerialNumber = "mac-9", "C09"
	f := plugintest.New(node, lease)
	f.MacRack.PrependReactor("list", "auditrecords", func(action clienttesting.Action) (bool, runtime.Object, error) {
		serial := action.(clienttesting.ListAction).GetListRestrictions().Fields.String()
		list := &rackv1alpha1.AuditRecordList{}
		for n := range lastRecords + 5 {
			list.Items = append(list.Items, rackv1alpha1.AuditRecord{Type: rackv1alpha1.LeaseBound, Time: metav1.NewMicroTime(plugintest.At(float64(n)).Time), Tenant: action.GetNamespace() + "|" + serial})
		}
		return true, list, nil
	})
	s, _ := serve(t, f, "", "acme")
	require.Eventually(t, func() bool {
		_, macs := s.model.state(Macs)
		_, leases := s.model.state(Leases)
		return macs == 1 && leases == 1
	}, 10*time.Second, time.Millisecond)
	got := read[Detail](t, s, "mac?name=mac-1")
	assert.Equal(t, "Mac16,10", got.Hardware.ModelIdentifier)
	assert.Len(t, got.Records, lastRecords)
	assert.Equal(t, "2026-12-01T12:00:00Z", got.Records[0].Time, "the last record comes first")
	assert.Equal(t, "|chassis.serialNumber=C0mac-1", got.Records[0].Tenant)

	f.ForbidMacRack("list", "auditrecords", "")
	got = read[Detail](t, s, "mac?name=mac-9")
	assert.Equal(t, "acme|chassis.serialNumber=C09", got.Records[0].Tenant, "a tenant sees the records of its namespace")
	got = read[Detail](t, s, "mac?name=mac-1")
	assert.Empty(t, got.Records)
	assert.Len(t, got.Notices, 1)

	code, _ := get(t, s.URL()+"mac?name=other")
	assert.Equal(t, 404, code)
}
