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
	tables.Number("VM-Starts", "Virtual machine starts granted in the window."),
	tables.Number("Max-VMs", "Maximum number of virtual machines on one Mac at a time."),
	tables.Number("Overlaps", "Times that two tenants used a Mac at once."),
	tables.Number("Floor-Breaches", "Times that a Mac was released before its floor."),
	tables.Number("Rejected", "Requests refused for one of the three rules."),
	tables.Column("Verdict", "Compliant, Violated or Incomplete."),
}

// NewTableConvertor returns the table convertor of ComplianceReports.
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
