package compliancereport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor/tabletest"
)

func TestTable(t *testing.T) {
	report := &rack.ComplianceReport{
		ObjectMeta: metav1.ObjectMeta{Name: "90d"},
		Status: rack.ComplianceReportStatus{
			Verdict: rack.ComplianceViolated, Chassis: 1, Leases: 2, VMStarts: 3, MaxVMs: 4, Overlaps: 5, FloorBreaches: 6, Rejected: 7,
		},
	}
	assert.Equal(t, []string{
		"NAME  CHASSIS  LEASES  VM-STARTS  MAX-VMS  OVERLAPS  FLOOR-BREACHES  REJECTED  VERDICT",
		"90d   1        2       3          4        5         6               7         Violated",
	}, tabletest.Print(t, NewTableConvertor(clocktesting.NewFakePassiveClock(time.Time{})), report))
}
