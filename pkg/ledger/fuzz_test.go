package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/apis/rack"
)

// FuzzReport looks for records that break the report, or for which it is not the same twice.
func FuzzReport(f *testing.F) {
	record := func(kind rack.AuditRecordType, sequence int64) *rack.AuditRecord {
		return &rack.AuditRecord{Type: kind, Sequence: sequence, Tenant: "acme", Chassis: rack.AuditChassis{NodeName: "mac-1", SerialNumber: "C07AAAAA0001"}}
	}
	var seed bytes.Buffer
	for i, kind := range []rack.AuditRecordType{rack.LeaseBound, rack.InstanceStarted, rack.InstanceStopped, rack.LeaseHeld, rack.LeaseReleased, rack.NodeQuarantined} {
		if err := json.NewEncoder(&seed).Encode(record(kind, int64(i+1))); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(seed.Bytes(), "90d")
	f.Add([]byte("{}\n{}"), "2026-08-01..2026-11-01")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, lines []byte, name string) {
		window, err := ParseWindow(name, now)
		if err != nil {
			return
		}
		source := func(_ context.Context, yield func(*rack.AuditRecord) error) error {
			decoder := json.NewDecoder(bytes.NewReader(lines))
			for {
				record := &rack.AuditRecord{}
				if decoder.Decode(record) != nil {
					return nil
				}
				if err := yield(record); err != nil {
					return err
				}
			}
		}
		first, firstErr := Report(t.Context(), source, nil, window)
		second, secondErr := Report(t.Context(), source, nil, window)
		require.Equal(t, firstErr == nil, secondErr == nil)
		require.Equal(t, first, second)
	})
}
