package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
)

const (
	benchMacs    = 1000
	benchRecords = 1000 // per Mac, over 90 days
)

// life records 90 days of one Mac: 45 leases of two days, each with two instances that are stopped
// and started again, until there are benchRecords records.
func life(t testing.TB, mac int) []*rack.AuditRecord {
	m := newMemory()
	node := newNode(fmt.Sprintf("mac%04d", mac))
	step := 90 * 24 * time.Hour / benchRecords
	for i := 0; len(m.records) < benchRecords; i++ {
		lease := newLease(fmt.Sprintf("tenant-%d", (mac+i)%40), fmt.Sprintf("lease-%d", i))
		m.bind(t, lease, node)
		for j := 0; j < 10; j++ {
			one, two := newInstance(lease, fmt.Sprintf("vm-%d-a", j)), newInstance(lease, fmt.Sprintf("vm-%d-b", j))
			m.step(step)
			m.append(t, NewInstanceStarted(one, lease, 1))
			m.append(t, NewInstanceStarted(two, lease, 2))
			m.step(step)
			m.append(t, NewInstanceStopped(one, lease, 1))
			m.append(t, NewInstanceStopped(two, lease, 0))
		}
		m.step(24*time.Hour + step)
		m.release(t, lease)
	}
	return m.records[:benchRecords]
}

// BenchmarkReport reports on a million records of a thousand Macs. The time to create them is not
// measured.
func BenchmarkReport(b *testing.B) {
	now := start.Add(90 * 24 * time.Hour)
	var windows []Window
	for _, name := range UsualWindows {
		w, err := ParseWindow(name, now)
		require.NoError(b, err)
		windows = append(windows, w)
	}
	var records []*rack.AuditRecord
	for mac := range benchMacs {
		records = append(records, life(b, mac)...)
	}
	b.ReportAllocs()
	for b.Loop() {
		statuses, err := Report(b.Context(), Records(records...), nil, windows...)
		b.StopTimer()
		require.NoError(b, err)
		status := statuses[3]
		require.Equal(b, rack.ComplianceCompliant, status.Verdict, status.Violations)
		require.Equal(b, int64(benchMacs*benchRecords), status.Records)
		require.Equal(b, int64(benchMacs), status.Chassis)
		require.Equal(b, int64(2), status.MaxVMs)
		b.StartTimer()
	}
	b.ReportMetric(float64(benchMacs*benchRecords)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
