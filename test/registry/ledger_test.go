package registry

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/test/registrytest"
)

// twoTenants leases mac-1 to acme and then to globex, and mac-2 to acme for longer.
func twoTenants(t *testing.T) *fleet {
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.lease("acme", "other", "mac-2")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "build")))
	f.start("mac-1", "acme", "one", 1)
	f.start("mac-1", "acme", "two", 2)
	f.stopped("mac-1", "acme", "one")
	f.stopped("mac-1", "acme", "two")
	f.setTime(noon.Add(25 * time.Hour))
	f.deleteLease("acme", "build")
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "build", unleased))
	f.setTime(noon.Add(27 * time.Hour))
	f.lease("globex", "next", "mac-1")
	return f
}

func (f *fleet) compliance(window string) rackv1alpha1.ComplianceReportStatus {
	f.t.Helper()
	return f.reportBy(f.admin, window)
}

func (f *fleet) reportBy(client versioned.Interface, window string) rackv1alpha1.ComplianceReportStatus {
	f.t.Helper()
	report, err := client.RackV1alpha1().ComplianceReports().Get(f.t.Context(), window, metav1.GetOptions{})
	require.NoError(f.t, err)
	return report.Status
}

// recordKey returns the key in etcd of a record.
func (f *fleet) recordKey(name string) (key string, value []byte) {
	f.t.Helper()
	resp, err := f.etcd.Client.Get(f.t.Context(), "", clientv3.WithPrefix())
	require.NoError(f.t, err)
	for _, kv := range resp.Kvs {
		if strings.HasSuffix(string(kv.Key), "/"+name) {
			return string(kv.Key), kv.Value
		}
	}
	f.t.Fatalf("%s is not in etcd", name)
	return "", nil
}

func TestReportOfAnHonestFleet(t *testing.T) {
	f := twoTenants(t)
	status := f.compliance("7d")
	assert.Equal(t, rackv1alpha1.ComplianceCompliant, status.Verdict, "%+v", status)
	assert.Empty(t, status.Violations)
	assert.EqualValues(t, 8, status.Records)
	assert.EqualValues(t, 2, status.Chassis)
	assert.EqualValues(t, 3, status.Leases)
	assert.EqualValues(t, 2, status.VMStarts)
	assert.EqualValues(t, 2, status.MaxVMs)
	assert.True(t, status.CoveredSince.Time.Equal(noon))

	status = f.compliance("1h")
	assert.EqualValues(t, 1, status.Records)
	assert.EqualValues(t, 2, status.Leases, "acme still has mac-2")

	list, err := f.admin.RackV1alpha1().ComplianceReports().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, report := range list.Items {
		names = append(names, report.Name)
	}
	assert.Equal(t, []string{"24h", "7d", "30d", "90d"}, names)

	_, err = f.admin.RackV1alpha1().ComplianceReports().Get(t.Context(), "fortnight", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	assert.ErrorContains(t, err, "a report is named after its window")
}

func TestReportOfATamperedLedger(t *testing.T) {
	for name, test := range map[string]struct {
		tamper  func(f *fleet)
		message string
	}{
		"a record deleted": {func(f *fleet) {
			key, _ := f.recordKey("c07aaaaa0001-000000000006")
			_, err := f.etcd.Client.Delete(context.Background(), key)
			require.NoError(f.t, err)
		}, "record 6 is missing between acme/c07aaaaa0001-000000000005 and globex/c07aaaaa0001-000000000007"},
		"the last record deleted": {func(f *fleet) {
			key, _ := f.recordKey("c07aaaaa0001-000000000007")
			_, err := f.etcd.Client.Delete(context.Background(), key)
			require.NoError(f.t, err)
		}, "record 7 is missing at the end of chain c07aaaaa0001"},
		"a record edited": {func(f *fleet) {
			key, value := f.recordKey("c07aaaaa0001-000000000002")
			edited := bytes.ReplaceAll(value, []byte("02:00:00:00:00:01"), []byte("02:00:00:00:00:09"))
			require.NotEqual(f.t, value, edited)
			_, err := f.etcd.Client.Put(context.Background(), key, string(edited))
			require.NoError(f.t, err)
		}, "acme/c07aaaaa0001-000000000002 was edited"},
		"a record copied": {func(f *fleet) {
			key, value := f.recordKey("c07aaaaa0001-000000000003")
			_, err := f.etcd.Client.Put(context.Background(), strings.Replace(key, "/acme/", "/zeta/", 1), string(value))
			require.NoError(f.t, err)
		}, "zeta/c07aaaaa0001-000000000003 is misplaced: it belongs in namespace acme"},
	} {
		t.Run(name, func(t *testing.T) {
			f := twoTenants(t)
			require.Equal(t, rackv1alpha1.ComplianceCompliant, f.compliance("7d").Verdict)
			test.tamper(f)
			status := f.compliance("7d")
			other := f.servers[1].Client(t, "admin", "system:masters")
			assert.Equal(t, f.reportBy(other, "7d"), status, "the other server has no earlier report")
			assert.Equal(t, rackv1alpha1.ComplianceIncomplete, status.Verdict)
			require.Len(t, status.Violations, 1)
			assert.Contains(t, status.Violations[0].Message, test.message)
			assert.EqualValues(t, 1, status.BrokenChains)
			assert.Zero(t, status.Overlaps+status.FloorBreaches)
		})
	}
}

func TestRejectionsOfTwoServersAtOnce(t *testing.T) {
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "one", "build")))
	require.NoError(t, f.create(t.Context(), newInstance("acme", "two", "build")))

	const rivals, each = 8, 50
	var group sync.WaitGroup
	for rival := range rivals {
		client := f.servers[rival%2].Client(t, "acme", "system:authenticated")
		group.Go(func() {
			for i := range each {
				third := newInstance("acme", fmt.Sprintf("third-%d-%d", rival, i), "build")
				_, err := client.InstanceV1alpha1().MacOSInstances("acme").Create(context.Background(), third, metav1.CreateOptions{})
				assert.True(t, apierrors.IsForbidden(err), "%v", err)
			}
		})
	}
	group.Wait()
	before := f.compliance("24h")
	assert.Less(t, before.Records, int64(40), "a flood leaves a few records only")
	for _, server := range f.servers {
		server.Stop() // which writes the pending counts
	}
	records := f.stored()
	var refused int64
	for _, record := range records {
		if record.Type == rack.InstanceRejected {
			refused += max(1, record.Details.Count)
		}
	}
	assert.EqualValues(t, rivals*each, refused, "every refusal is counted, those of the last minute at the shutdown")
}

// stored returns the records in etcd, as served by a server that has just started.
func (f *fleet) stored() (records []*rack.AuditRecord) {
	f.t.Helper()
	f.servers = append(f.servers, registrytest.StartServer(f.t, f.etcd, f.clock))
	client := f.servers[len(f.servers)-1].Client(f.t, "admin", "system:masters")
	list, err := client.RackV1alpha1().AuditRecords("").List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	for i := range list.Items {
		record, err := ledger.FromAPI(&list.Items[i])
		require.NoError(f.t, err)
		assert.Equal(f.t, ledger.Hash(record), record.Hash)
		records = append(records, record)
	}
	return records
}

func TestRecordsExpire(t *testing.T) {
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	f.setTime(noon.Add(399 * 24 * time.Hour))
	f.deleteLease("acme", "build")
	f.scrub("mac-1")
	require.NoError(t, f.release("acme", "build", unleased))
	require.Len(t, f.records("acme"), 2)

	f.setTime(noon.Add(401 * 24 * time.Hour))
	require.Eventually(t, func() bool {
		f.clock.Step(ledger.ExpiryInterval)
		return len(f.records("acme")) < 2
	}, time.Minute, 50*time.Millisecond, "400 days by default")
	assert.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseReleased}, typesOf(f.records("acme")))
	status := f.compliance("30d")
	assert.Equal(t, rackv1alpha1.ComplianceCompliant, status.Verdict, "%+v", status)
}
