// Package compliancereport computes ComplianceReports.
package compliancereport

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Number("Chassis", "Macs with a record in the window."),
	tableconvertor.Number("Leases", "Leases in the window."),
	tableconvertor.Number("VM-Starts", "Virtual machine starts granted in the window."),
	tableconvertor.Number("Max-VMs", "Maximum number of virtual machines on one Mac at a time."),
	tableconvertor.Number("Overlaps", "Times that two tenants used a Mac at once."),
	tableconvertor.Number("Floor-Breaches", "Times that a Mac was released before its floor."),
	tableconvertor.Number("Rejected", "Requests refused for one of the three rules."),
	tableconvertor.Column("Verdict", "Compliant, Violated or Incomplete."),
}

// NewTableConvertor returns the table convertor of ComplianceReports.
func NewTableConvertor(clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(r *rack.ComplianceReport) []any {
		return []any{
			r.Name,
			r.Status.Chassis,
			r.Status.Leases,
			r.Status.VMStarts,
			r.Status.MaxVMs,
			r.Status.Overlaps,
			r.Status.FloorBreaches,
			r.Status.Rejected,
			tableconvertor.Text(string(r.Status.Verdict)),
		}
	})
}
