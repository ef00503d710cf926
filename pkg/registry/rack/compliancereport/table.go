// Package compliancereport computes ComplianceReports.
package compliancereport

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tables"
)

var columns = []metav1.TableColumnDefinition{
	tables.Name(),
	tables.Number("Chassis", "Macs with a record in the window."),
	tables.Number("Leases", "Leases in the window."),
	tables.Number("VM-Starts", "Virtual machines that were started in the window."),
	tables.Number("Max-VMs", "Most virtual machines that ran on one Mac at a time."),
	tables.Number("Overlaps", "Macs that two tenants had at once."),
	tables.Number("Floor-Breaches", "Macs that were released before their floor."),
	tables.Number("Rejected", "Attempts that were refused."),
	tables.Column("Verdict", "Compliant, Violated or Incomplete."),
}

// NewTableConvertor returns what prints ComplianceReports.
func NewTableConvertor(clock.PassiveClock) rest.TableConvertor {
	return tables.New(columns, func(r *rack.ComplianceReport) []any {
		return []any{
			r.Name,
			r.Status.Chassis,
			r.Status.Leases,
			r.Status.VMStarts,
			r.Status.MaxVMs,
			r.Status.Overlaps,
			r.Status.FloorBreaches,
			r.Status.Rejected,
			tables.Text(string(r.Status.Verdict)),
		}
	})
}
