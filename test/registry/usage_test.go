package registry

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/ledger/usage"
)

// usageOf returns a report as a user reads it. The server's book is as old as the last step of the
// clock.
func (f *fleet) usageOf(client versioned.Interface, namespace, window string) v1alpha1.UsageReportStatus {
	f.t.Helper()
	report, err := client.RackV1alpha1().UsageReports(namespace).Get(f.t.Context(), window, metav1.GetOptions{})
	require.NoError(f.t, err)
	require.Equal(f.t, namespace, report.Namespace)
	return report.Status
}

// exported returns the book of an export of the ledger, as an auditor has it.
func (f *fleet) exported() *usage.Book {
	f.t.Helper()
	list, err := f.admin.RackV1alpha1().AuditRecords("").List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	var records []*rack.AuditRecord
	for i := range list.Items {
		record, err := ledger.FromAPI(&list.Items[i])
		require.NoError(f.t, err)
		records = append(records, record)
	}
	var file bytes.Buffer
	_, err = ledger.Export(f.t.Context(), ledger.Sorted(ledger.Records(records...)), &file, ledger.CSV)
	require.NoError(f.t, err)
	findings, err := ledger.Find(f.t.Context(), ledger.ReadFrom(&file), nil, ledger.Everything(f.clock.Now()))
	require.NoError(f.t, err)
	return usage.NewBook(findings.Leases, f.clock.Now(), findings.Reports[0].CoveredSince)
}

// acmeAndGlobex has two leases of acme, one of them Held, and one of globex.
func acmeAndGlobex(t *testing.T) *fleet {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.lease("acme", "other", "mac-2")
	f.lease("acme", "build", "mac-1")
	f.setTime(noon.Add(90 * time.Minute))
	f.deleteLease("acme", "build")
	require.Equal(t, v1alpha1.MacNodeLeaseHeld, f.getLease("acme", "build").Status.Phase)
	f.setTime(noon.Add(25 * time.Hour))
	held := f.getLease("acme", "build")
	held.Status.Phase = v1alpha1.MacNodeLeaseReleasing
	_, err := f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), held, metav1.UpdateOptions{})
	require.NoError(t, err)
	f.setTime(noon.Add(26 * time.Hour))
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "build", unleased))
	f.lease("globex", "next", "mac-1")
	f.setTime(noon.Add(60*time.Hour + 12*time.Minute))
	return f
}

func TestUsage(t *testing.T) {
	f := acmeAndGlobex(t)
	acme := f.usageOf(f.acme, "acme", "7d")
	assert.EqualValues(t, 2, acme.Total.Leases)
	assert.EqualValues(t, 1+3, acme.Total.BillableDays, "the scrub after the floor is not billed")
	assert.Equal(t, 26*time.Hour+60*time.Hour+12*time.Minute, acme.Total.ChassisTime.Duration)
	assert.Equal(t, 22*time.Hour+30*time.Minute, acme.Total.HeldTime.Duration)
	assert.EqualValues(t, 1, acme.Running.Leases)
	require.Len(t, acme.Classes, 1)
	assert.Equal(t, "base", acme.Classes[0].ClassName)
	assert.Equal(t, "mac-m4-24h", acme.Classes[0].SKU)
	require.Len(t, acme.Leases, 2)
	build := acme.Leases[0]
	assert.Equal(t, "build", build.Name)
	assert.True(t, build.BillableUntil.Time.Equal(noon.Add(24*time.Hour)))
	assert.True(t, build.DeletedAt.Time.Equal(noon.Add(90*time.Minute)))
	assert.Equal(t, []string{"acme/c07aaaaa0001-000000000001", "acme/c07aaaaa0001-000000000002", "acme/c07aaaaa0001-000000000003"}, build.Records)

	list, err := f.admin.RackV1alpha1().UsageReports("").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=7d"})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	assert.Equal(t, acme, list.Items[0].Status)
	assert.Equal(t, "globex", list.Items[1].Namespace)
}

// A lease that is deleted after its floor is billed until its deletion, whatever the scrub takes.
func TestUsageUntilTheDeletion(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	f.setTime(noon.Add(47 * time.Hour))
	f.deleteLease("acme", "build")
	f.setTime(noon.Add(49 * time.Hour))
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "build", unleased))
	status := f.usageOf(f.acme, "acme", "7d")
	assert.EqualValues(t, 2, status.Total.BillableDays)
	assert.Equal(t, 49*time.Hour, status.Total.ChassisTime.Duration)
	assert.True(t, status.Leases[0].DeletedAt.Time.Equal(noon.Add(47*time.Hour)))
}

// An export has the same numbers as the server.
func TestUsageOfAnExport(t *testing.T) {
	f := acmeAndGlobex(t)
	book := f.exported()
	assert.Equal(t, []string{"acme", "globex"}, book.Tenants())
	for _, tenant := range book.Tenants() {
		for _, name := range []string{"today", "7d", "month", "36h", noon.Format("2006-01-02") + ".." + noon.AddDate(0, 0, 1).Format("2006-01-02"), noon.Format("2006-01")} {
			window, err := book.Window(name)
			require.NoError(t, err)
			report := book.Report(tenant, window, nil)
			var external v1alpha1.UsageReport
			require.NoError(t, v1alpha1.Convert_rack_UsageReport_To_v1alpha1_UsageReport(&report, &external, nil))
			want, err := json.Marshal(external.Status)
			require.NoError(t, err)
			got, err := json.Marshal(f.usageOf(f.admin, tenant, name))
			require.NoError(t, err)
			assert.JSONEq(t, string(want), string(got), "%s %s", tenant, name)
		}
	}
}

// A namespace with the name of an earlier one does not see its leases.
func TestUsageOfAnEarlierNamespace(t *testing.T) {
	f, n := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	n.make("acme", "acme-1")
	old := f.lease("acme", "old", "mac-1")
	f.setTime(noon.Add(time.Hour))
	n.make("acme", "acme-2")
	assert.Zero(t, f.usageOf(f.acme, "acme", "7d").Total, "before its first lease")
	f.lease("acme", "new", "mac-2")
	f.setTime(noon.Add(2 * time.Hour))

	status := f.usageOf(f.acme, "acme", "7d")
	assert.EqualValues(t, 1, status.Total.Leases)
	require.Len(t, status.Leases, 1)
	assert.Equal(t, "new", status.Leases[0].Name)
	list, err := f.acme.RackV1alpha1().UsageReports("acme").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, report := range list.Items {
		for _, lease := range report.Status.Leases {
			assert.NotEqual(t, old.UID, lease.UID)
		}
	}
	assert.EqualValues(t, 2, f.usageOf(f.admin, "acme", "7d").Total.Leases, "the provider sees both")
}

// A broken ledger does not hide what it cannot prove.
func TestUsageOfABrokenLedger(t *testing.T) {
	f := acmeAndGlobex(t)
	key, _ := f.recordKey("c07aaaaa0001-000000000002")
	f.deleteKey(key)
	status := f.usageOf(f.acme, "acme", "7d")
	assert.EqualValues(t, 1, status.Unproven)
	assert.Contains(t, status.Leases[0].Unproven, "records of its Mac are missing")
	assert.Zero(t, f.usageOf(f.admin, "globex", "7d").Unproven)
}

func TestUsageIsReadOnly(t *testing.T) {
	f := newFleet(t, 1)
	for _, name := range []string{"fortnight", "2026-00", "month-", "-1d", "2999-01"} {
		_, err := f.admin.RackV1alpha1().UsageReports("acme").Get(t.Context(), name, metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
	}
	for _, verb := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		err := f.admin.RackV1alpha1().RESTClient().Verb(verb).Namespace("acme").Resource("usagereports").Name("7d").Body([]byte("{}")).
			SetHeader("Content-Type", "application/merge-patch+json").Do(t.Context()).Error()
		assert.True(t, apierrors.IsMethodNotSupported(err), "%s: %v", verb, err)
	}
}
