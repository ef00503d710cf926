// Package usagereport computes UsageReports.
package usagereport

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/tableconvertor"
)

var columns = []metav1.TableColumnDefinition{
	tableconvertor.Name(),
	tableconvertor.Number("Leases", "Leases that had a Mac in the window."),
	tableconvertor.Number("Chassis-Days", "Billed periods of 24 hours of one Mac."),
	tableconvertor.Column("Held", "Time between the deletion of leases and their floors."),
	tableconvertor.Column("As-Of", "Time at which the records were read."),
	tableconvertor.Wide(tableconvertor.Column("Chassis-Time", "Time for which leases had a Mac.")),
	tableconvertor.Wide(tableconvertor.Number("Running", "Leases that still have their Macs.")),
	tableconvertor.Wide(tableconvertor.Number("Unproven", "Leases whose use the ledger does not prove.")),
}

// NewTableConvertor returns the table convertor of UsageReports.
func NewTableConvertor(clock.PassiveClock) rest.TableConvertor {
	return tableconvertor.New(columns, func(r *rack.UsageReport) []any {
		return []any{
			r.Name,
			r.Status.Total.Leases,
			r.Status.Total.BillableDays,
			hours(r.Status.Total.HeldTime.Duration),
			r.Status.AsOf.UTC().Format(time.RFC3339),
			hours(r.Status.Total.ChassisTime.Duration),
			r.Status.Running.Leases,
			r.Status.Unproven,
		}
	})
}

// hours returns a time in hours and minutes. Sums of leases are not shortened to days, because a
// billable day is another number.
func hours(d time.Duration) string {
	minutes := int64(d / time.Minute)
	return fmt.Sprintf("%dh%02dm", minutes/60, minutes%60)
}
