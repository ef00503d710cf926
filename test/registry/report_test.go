package registry

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"k8s.io/component-base/metrics/legacyregistry"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/registrytest"
)

// reported returns the number of records in all reports that were read and proved for the report,
// and for an earlier one.
func reported(t testing.TB) (read, remembered int) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != "macrack_compliance_reported_records_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			count := int(metric.GetCounter().GetValue())
			if metric.GetLabel()[0].GetValue() == "read" {
				read += count
			} else {
				remembered += count
			}
		}
	}
	return read, remembered
}

// requireReport checks that a report equals that of a server without a memory, and returns it. It
// also checks how many records the server has read, and how many it remembered.
func (f *fleet) requireReport(read, remembered int) rackv1alpha1.ComplianceReportStatus {
	f.t.Helper()
	readBefore, rememberedBefore := reported(f.t)
	status := f.compliance("7d")
	readAfter, rememberedAfter := reported(f.t)
	require.Equal(f.t, [2]int{read, remembered}, [2]int{readAfter - readBefore, rememberedAfter - rememberedBefore}, "read and remembered records")
	fresh := registrytest.StartServer(f.t, f.etcd, f.clock)
	defer fresh.Stop()
	require.Equal(f.t, f.reportBy(fresh.Client(f.t, "admin", "system:masters"), "7d"), status)
	return status
}

func (f *fleet) put(key string, value []byte) {
	f.t.Helper()
	_, err := f.etcd.Client.Put(f.t.Context(), key, string(value))
	require.NoError(f.t, err)
}

func (f *fleet) deleteKey(key string) {
	f.t.Helper()
	_, err := f.etcd.Client.Delete(f.t.Context(), key)
	require.NoError(f.t, err)
}

func TestReportsReadNewRecordsOnly(t *testing.T) {
	f := twoTenants(t)
	f.requireReport(8, 0)
	f.requireReport(0, 8)
	require.NoError(t, f.create(t.Context(), newInstance("globex", "one", "next")))
	f.start("mac-1", "globex", "one", 1)
	status := f.requireReport(1, 8)
	assert.EqualValues(t, 3, status.VMStarts)
	f.requireReport(0, 9)

	f.clock.Step(5 * time.Hour)
	f.requireReport(0, 9)
	f.clock.Step(time.Hour)
	f.requireReport(9, 0)
}

// A change of a remembered record is reported as by a server that has no memory of it.
func TestReportsOfChangesOfRememberedRecords(t *testing.T) {
	for name, change := range map[string]func(f *fleet){
		"a record replaced by another": func(f *fleet) {
			key, _ := f.recordKey("c07aaaaa0001-000000000003")
			_, value := f.recordKey("c07aaaaa0001-000000000004")
			f.put(key, value)
		},
		"a record deleted, and one added": func(f *fleet) {
			key, _ := f.recordKey("c07aaaaa0001-000000000002")
			last, value := f.recordKey("c07aaaaa0001-000000000007")
			f.deleteKey(key)
			f.put(strings.Replace(last, "000000000007", "000000000008", 1), value)
		},
		"a record moved to another namespace": func(f *fleet) {
			key, value := f.recordKey("c07aaaaa0001-000000000003")
			f.deleteKey(key)
			f.put(strings.Replace(key, "/acme/", "/globex/", 1), value)
		},
		"a record moved to a place that the API does not read": func(f *fleet) {
			key, value := f.recordKey("c07aaaaa0001-000000000003")
			f.deleteKey(key)
			f.put(strings.Replace(key, "/acme/", "/acme/acme/", 1), value)
		},
		"a chain deleted": func(f *fleet) {
			key, _ := f.recordKey("c07aaaaa0002-000000000001")
			f.deleteKey(key)
		},
		"a head moved back": func(f *fleet) {
			_, value := f.recordKey("ledger-head/c07aaaaa0002")
			key, _ := f.recordKey("ledger-head/c07aaaaa0001")
			f.put(key, value)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := twoTenants(t)
			f.requireReport(8, 0)
			f.requireReport(0, 8)
			change(f)
			status := f.compliance("7d")
			assert.Equal(t, rackv1alpha1.ComplianceIncomplete, status.Verdict)
			other := f.servers[1].Client(t, "admin", "system:masters")
			assert.Equal(t, f.reportBy(other, "7d"), status)
		})
	}
}

// A record that is deleted and written again is read again.
func TestReportOfARewrittenRecord(t *testing.T) {
	f := twoTenants(t)
	f.requireReport(8, 0)
	key, value := f.recordKey("c07aaaaa0001-000000000002")
	f.deleteKey(key)
	f.put(key, value)
	assert.Equal(t, rackv1alpha1.ComplianceCompliant, f.requireReport(8, 0).Verdict)
}

// An old backup of etcd lacks records that a server remembers. An attacker can then write others at
// the same revisions, with the same keys and hashes.
func TestReportAfterARestoredBackup(t *testing.T) {
	f := twoTenants(t)
	backup := filepath.Join(t.TempDir(), "backup")
	f.etcd.Restart(t, func(dir string) { require.NoError(t, os.CopyFS(backup, os.DirFS(dir))) })
	begin := f.etcd.Revision(t)
	require.NoError(t, f.create(t.Context(), newInstance("globex", "one", "next")))
	f.start("mac-1", "globex", "one", 1)
	end := f.etcd.Revision(t)
	require.Equal(t, rackv1alpha1.ComplianceCompliant, f.requireReport(9, 0).Verdict)
	// A new connection to the restarted etcd makes the server read all records again.
	require.Eventually(t, func() bool {
		_, before := reported(t)
		f.compliance("7d")
		_, after := reported(t)
		return after-before == 9
	}, time.Minute, 100*time.Millisecond)

	var writes [][]clientv3.Op // of each revision
	for revision := begin + 1; revision <= end; revision++ {
		resp, err := f.etcd.Client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithMinModRev(revision))
		require.NoError(t, err)
		var ops []clientv3.Op
		for _, kv := range resp.Kvs {
			ops = append(ops, clientv3.OpPut(string(kv.Key), strings.Replace(string(kv.Value), "InstanceStarted", "InstanceStopped", 1)))
		}
		writes = append(writes, ops)
	}
	f.etcd.Restart(t, func(dir string) {
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, os.CopyFS(dir, os.DirFS(backup)))
	})
	for _, ops := range writes {
		_, err := f.etcd.Client.Txn(context.Background()).Then(ops...).Commit()
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, f.etcd.Revision(t), end)
	status := f.requireReport(9, 0)
	assert.Equal(t, rackv1alpha1.ComplianceIncomplete, status.Verdict)
	assert.Contains(t, status.Violations[0].Message, "was edited: its hash does not match its content")
}
