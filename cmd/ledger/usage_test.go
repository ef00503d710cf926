package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
)

// exportLeases exports a ledger with a lease of acme over the end of August, which was Held and
// released after a scrub of an hour, and a lease of globex, which still runs.
func exportLeases(t *testing.T) (path string) {
	s := &server{heads: map[string][]byte{}}
	clock := testingclock.NewFakePassiveClock(time.Date(2026, 8, 31, 18, 0, 0, 0, time.UTC))
	add := func(record *rack.AuditRecord) {
		require.NoError(t, ledger.Append(context.Background(), s, clock, record))
	}
	bind := func(tenant, name, mac string) *rack.MacNodeLease {
		at, floor := metav1.NewTime(clock.Now()), metav1.NewTime(clock.Now().Add(24*time.Hour))
		lease := &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name, UID: "1"}, Spec: rack.MacNodeLeaseSpec{ClassName: "base"}}
		lease.Status = rack.MacNodeLeaseStatus{BoundAt: &at, EarliestReleaseAt: &floor, NodeName: "mac", SerialNumber: mac}
		record := ledger.NewLeaseBound(lease, &rack.MacNode{Spec: rack.MacNodeSpec{SerialNumber: mac}})
		record.Details.SKU = "=SKU"
		add(record)
		return lease
	}
	build := bind("acme", "build", "C07MAC1")
	bind("globex", "next", "C07MAC2")
	clock.SetTime(clock.Now().Add(5*time.Hour + 50*time.Minute + 1*time.Second))
	add(ledger.NewLeaseHeld(build, clock.Now()))
	clock.SetTime(build.Status.BoundAt.Add(25 * time.Hour))
	add(ledger.NewLeaseReleased(build, clock.Now(), nil))

	path = filepath.Join(t.TempDir(), "ledger.jsonl")
	options := &exportOptions{format: "jsonl", output: path}
	require.NoError(t, options.run(context.Background(), s.list, nil, &bytes.Buffer{}))
	return path
}

func TestUsageText(t *testing.T) {
	path := exportLeases(t)
	out, err := run("", "usage", path, "--window", "2026-08")
	require.NoError(t, err)
	assert.Equal(t, `NAMESPACE  CLASS  SKU   LEASES  RUNNING  CHASSIS-DAYS  CHASSIS-HOURS  HELD-HOURS
acme       base   =SKU  1       0        1             6.00           0.17
globex     base   =SKU  1       1        1             6.00           0.00
from 2026-08-01T00:00:00Z to 2026-09-01T00:00:00Z, as of 2026-09-15T12:00:00Z
the ledger has all records since 2026-08-31T18:00:00Z only
`, out)
	out, err = run("", "usage", path, "--namespace", "acme")
	require.NoError(t, err)
	assert.Contains(t, out, "acme       base   =SKU  1       0        0             19.00          18.00\n")
	assert.NotContains(t, out, "globex")
}

func TestUsageCSVAndJSON(t *testing.T) {
	path := exportLeases(t)
	out, err := run("", "usage", path, "--window", "2026-08-01..2026-10-01", "-o", "csv", "--as-of", "2026-09-02T00:00:00Z")
	require.NoError(t, err)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 3)
	cell := func(row int, name string) string {
		for i, column := range rows[0] {
			if column == name {
				return rows[row][i]
			}
		}
		t.Fatal(name)
		return ""
	}
	assert.Equal(t, "'=SKU", cell(1, "sku"), "no formula")
	assert.Equal(t, "1", cell(1, "billableDays"))
	assert.Equal(t, "25.00", cell(1, "chassisHours"))
	assert.Equal(t, "18.17", cell(1, "heldHours"))
	assert.Equal(t, "65399", cell(1, "heldSeconds"))
	assert.Equal(t, "2026-09-01T18:00:00Z", cell(1, "billableUntil"))
	assert.Equal(t, "acme/c07mac1-000000000001 acme/c07mac1-000000000002 acme/c07mac1-000000000003", cell(1, "records"))
	assert.Equal(t, "30.00", cell(2, "chassisHours"), "until --as-of")
	assert.Empty(t, cell(2, "releasedAt"))

	out, err = run("", "usage", path, "--window", "2026-08-01..2026-10-01", "-o", "json", "--as-of", "2026-09-02T00:00:00Z")
	require.NoError(t, err)
	var list v1alpha1.UsageReportList
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list.Items, 2)
	assert.Equal(t, "UsageReport", list.Items[0].Kind)
	assert.Equal(t, 65399*time.Second, list.Items[0].Status.Total.HeldTime.Duration)
	assert.EqualValues(t, 2, list.Items[1].Status.Running.BillableDays)
}

func TestUsageRefuses(t *testing.T) {
	path := exportLeases(t)
	for message, args := range map[string][]string{
		"unknown format":     {"-o", "pdf"},
		"is not such a name": {"--window", "x"},
		"is not a time":      {"--as-of", "yesterday"},
	} {
		_, err := run("", append([]string{"usage", path}, args...)...)
		assert.ErrorContains(t, err, message)
		assert.Equal(t, 2, exitCode(err))
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.SplitAfter(string(content), "\n")

	out, err := run(lines[0]+lines[2]+lines[3], "usage", "-", "--window", "2026-08-01..2026-10-01")
	assert.ErrorContains(t, err, "does not prove all use: unproven leases: 1")
	assert.Equal(t, 1, exitCode(err))
	assert.Contains(t, out, "acme ", "the report has the use that the file proves")
	_, err = run("x", "usage", "-")
	assert.Equal(t, 1, exitCode(err))
	_, err = run("", "usage", "-")
	assert.ErrorContains(t, err, "no records")
	_, err = run("", "usage", "missing.jsonl")
	assert.Equal(t, 2, exitCode(err))
}
