package console

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/fleet"
)

// Compliance is what the page shows of the compliance reports.
type Compliance struct {
	Reports []ComplianceReport `json:"reports"`
	Notice  string             `json:"notice,omitempty"`
}

// ComplianceReport is the report of a window.
type ComplianceReport struct {
	Window string                              `json:"window"`
	Status rackv1alpha1.ComplianceReportStatus `json:"status"`
}

func (s *Server) serveCompliance(w http.ResponseWriter, req *http.Request) {
	c := Compliance{Reports: []ComplianceReport{}}
	list, err := s.clients.MacRack.RackV1alpha1().ComplianceReports().List(req.Context(), metav1.ListOptions{})
	if err != nil {
		c.Notice = fleet.ComplianceReports.Explain("list", err).Error()
	} else {
		for _, report := range list.Items {
			c.Reports = append(c.Reports, ComplianceReport{report.Name, report.Status})
		}
	}
	serveJSON(w, c)
}

// Usage is what the page shows of the usage reports.
type Usage struct {
	Rows   []UsageRow `json:"rows"`
	Leased []Step     `json:"leased"`
	Notice string     `json:"notice,omitempty"`
}

// UsageRow is the use of the Macs of a class by a tenant in a window.
type UsageRow struct {
	Window       string `json:"window"`
	Tenant       string `json:"tenant"`
	Class        string `json:"class"`
	SKU          string `json:"sku,omitempty"`
	Leases       int64  `json:"leases"`
	Running      int64  `json:"running"`
	BillableDays int64  `json:"billableDays"`
	ChassisHours int64  `json:"chassisHours"`
	HeldHours    int64  `json:"heldHours"`
}

// Step is a change of the number of leased Macs.
type Step struct {
	Time   string `json:"time"`
	Leased int    `json:"leased"`
}

// curve is the window of the usage reports that the curve of leased Macs is drawn from.
const curve = "30d"

func (s *Server) serveUsage(w http.ResponseWriter, req *http.Request) {
	reports, notice := s.readUsage(req.Context())
	u := Usage{Rows: []UsageRow{}, Leased: []Step{}, Notice: notice}
	var leases []rackv1alpha1.LeaseUsage
	for _, report := range reports {
		for _, class := range report.Status.Classes {
			u.Rows = append(u.Rows, UsageRow{
				Window: report.Name, Tenant: report.Namespace, Class: class.ClassName, SKU: class.SKU, Leases: class.Total.Leases, Running: class.Running.Leases,
				BillableDays: class.Total.BillableDays, ChassisHours: hours(class.Total.ChassisTime), HeldHours: hours(class.Total.HeldTime),
			})
		}
		if report.Name == curve {
			leases = append(leases, report.Status.Leases...)
		}
	}
	u.Leased = leasedOverTime(leases, s.clock.Now().AddDate(0, 0, -30))
	serveJSON(w, u)
}

func hours(d metav1.Duration) int64 { return int64(d.Round(time.Hour) / time.Hour) }

// readUsage reads the reports of the first namespace that the user may list.
func (s *Server) readUsage(ctx context.Context) (reports []rackv1alpha1.UsageReport, notice string) {
	for _, namespace := range s.namespaces {
		list, err := s.clients.MacRack.RackV1alpha1().UsageReports(namespace).List(ctx, metav1.ListOptions{})
		if err == nil {
			return list.Items, notice
		}
		notice = cmp.Or(notice, fleet.UsageReports.In(namespace).Explain("list", err).Error())
		if !apierrors.IsForbidden(err) {
			return nil, notice
		}
	}
	return nil, notice
}

// leasedOverTime returns how many Macs were leased from a time on.
func leasedOverTime(leases []rackv1alpha1.LeaseUsage, from time.Time) []Step {
	changes := map[time.Time]int{from.UTC().Truncate(time.Second): 0}
	for _, lease := range leases {
		bound := lease.BoundAt.UTC()
		if bound.Before(from) {
			bound = from.UTC().Truncate(time.Second)
		}
		changes[bound]++
		if lease.ReleasedAt != nil {
			changes[lease.ReleasedAt.UTC()]--
		}
	}
	steps, leased := make([]Step, 0, len(changes)), 0
	for _, t := range slices.SortedFunc(maps.Keys(changes), time.Time.Compare) {
		leased += changes[t]
		steps = append(steps, Step{cmdutil.Time(t), leased})
	}
	return steps
}
