package rack

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ComplianceReport reports whether the three rules held in a time window. It is computed from the
// ledger alone, at each read. Its name is the window, in UTC: a duration up to now such as 24h or
// 90d, today, month (the current one), a month such as 2026-11, or two dates such as
// 2026-08-01..2026-11-01. The second date is not in the window.
type ComplianceReport struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Status ComplianceReportStatus
}

// ComplianceVerdict is the verdict of a report.
type ComplianceVerdict string

const (
	// ComplianceCompliant means that the ledger is complete and shows no violation.
	ComplianceCompliant ComplianceVerdict = "Compliant"
	// ComplianceViolated means that the ledger shows a violation of a rule.
	ComplianceViolated ComplianceVerdict = "Violated"
	// ComplianceIncomplete means that the ledger has a gap or was edited and therefore proves
	// nothing.
	ComplianceIncomplete ComplianceVerdict = "Incomplete"
)

// ComplianceReportStatus is the result of a report.
type ComplianceReportStatus struct {
	Verdict       ComplianceVerdict
	From          metav1.Time
	To            metav1.Time
	CoveredSince  *metav1.Time
	Records       int64
	Chassis       int64
	Leases        int64
	VMStarts      int64
	MaxVMs        int64
	Overlaps      int64
	FloorBreaches int64
	Rejected      int64
	// OtherRejections is the number of refused instances that broke no rule.
	OtherRejections int64
	BrokenChains    int64
	Violations      []ComplianceViolation
}

// ComplianceViolation is a violation and the records that prove it.
type ComplianceViolation struct {
	Rule         string
	SerialNumber string
	Time         metav1.MicroTime
	Message      string
	Records      []string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ComplianceReportList is a list of ComplianceReports.
type ComplianceReportList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []ComplianceReport
}
