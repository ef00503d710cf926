package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// reports answers requests for reports, which would need a ledger of a month with violations. All
// others go to the server.
type reports struct {
	next http.RoundTripper
	now  time.Time
}

// RoundTrip answers a request.
func (r *reports) RoundTrip(req *http.Request) (*http.Response, error) {
	var list runtime.Object
	switch path.Base(req.URL.Path) {
	case "compliancereports":
		list = r.compliance()
	case "usagereports":
		list = r.usage()
	default:
		return r.next.RoundTrip(req)
	}
	data, err := json.Marshal(list)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)), Request: req}, err
}

func (r *reports) compliance() runtime.Object {
	list := &rackv1alpha1.ComplianceReportList{TypeMeta: metav1.TypeMeta{APIVersion: "rack.macrack.io/v1alpha1", Kind: "ComplianceReportList"}}
	for i, window := range []string{"24h", "7d", "30d", "90d"} {
		report := rackv1alpha1.ComplianceReport{ObjectMeta: metav1.ObjectMeta{Name: window}}
		leases := []int64{930, 5200, 21400, 60800}[i]
		report.Status = rackv1alpha1.ComplianceReportStatus{Verdict: rackv1alpha1.ComplianceCompliant, Chassis: 1000, Leases: leases, VMStarts: 7 * leases, MaxVMs: 2, Rejected: 12 * int64(i+1)}
		if window == "30d" || window == "90d" {
			report.Status.Verdict, report.Status.MaxVMs = rackv1alpha1.ComplianceViolated, 3
			report.Status.Violations = []rackv1alpha1.ComplianceViolation{{Rule: "TwoVMsPerChassis", SerialNumber: "C070000042", Time: metav1.NewMicroTime(r.now.AddDate(0, 0, -12)),
				Message: "3 virtual machines ran at once: vm-1, vm-2 and " + hostile, Records: []string{"acme/c070000042-000000000007", "acme/c070000042-000000000008", "acme/c070000042-000000000009"}}}
		}
		list.Items = append(list.Items, report)
	}
	return list
}

func (r *reports) usage() runtime.Object {
	list := &rackv1alpha1.UsageReportList{TypeMeta: metav1.TypeMeta{APIVersion: "rack.macrack.io/v1alpha1", Kind: "UsageReportList"}}
	for i, window := range []string{"today", "7d", "30d", "month"} {
		for k, tenant := range tenants {
			report := rackv1alpha1.UsageReport{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: window}}
			days := []int64{1, 7, 30, 1}[i]
			for c, class := range []string{"base", "pro"} {
				leases := int64(40+13*k) * days / int64(1+3*c)
				use := rackv1alpha1.Usage{Leases: leases, BillableDays: leases + 3*days, ChassisTime: metav1.Duration{Duration: time.Duration(leases) * 23 * time.Hour}, HeldTime: metav1.Duration{Duration: time.Duration(leases) * time.Hour}}
				report.Status.Classes = append(report.Status.Classes, rackv1alpha1.ClassUsage{ClassName: class, SKU: "mac-mini-" + class, Total: use, Running: rackv1alpha1.Usage{Leases: leases / days}})
			}
			if window == "30d" {
				report.Status.Leases = r.leases(k)
			}
			list.Items = append(list.Items, report)
		}
	}
	return list
}

// leases returns the leases of a tenant in 30 days: more from week to week, fewer at weekends.
func (r *reports) leases(k int) (leases []rackv1alpha1.LeaseUsage) {
	for day := 30; day >= 0; day-- {
		bound := r.now.AddDate(0, 0, -day)
		count := 80 + 2*(30-day)
		if weekday := bound.Weekday(); weekday == time.Saturday || weekday == time.Sunday {
			count /= 2
		}
		for n := range count {
			lease := rackv1alpha1.LeaseUsage{Name: fmt.Sprintf("ci-%d-%d", day, n), BoundAt: metav1.NewTime(bound.Add(time.Duration(n*7+k) * time.Minute))}
			if lease.BoundAt.After(r.now) {
				continue
			}
			if day > 1 {
				released := metav1.NewTime(lease.BoundAt.Add(25 * time.Hour))
				lease.ReleasedAt = &released
			}
			leases = append(leases, lease)
		}
	}
	return leases
}
