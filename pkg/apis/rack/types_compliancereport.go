package rack

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ComplianceReport answers, from the ledger alone, whether the three rules held in a window of time. It is
// computed when it is read. Its name is the window: a duration back from now such as 24h, 7d or 90d, or two
// dates such as 2026-08-01..2026-11-01, of which the second is not in the window.
type ComplianceReport struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Status ComplianceReportStatus
}

// ComplianceVerdict is the answer in one word.
type ComplianceVerdict string

const (
	// ComplianceCompliant means that the ledger is unbroken and shows no violation.
	ComplianceCompliant ComplianceVerdict = "Compliant"
	// ComplianceViolated means that the ledger shows a violation of a rule.
	ComplianceViolated ComplianceVerdict = "Violated"
	// ComplianceIncomplete means that the ledger has a gap or was edited, so that it proves nothing.
	ComplianceIncomplete ComplianceVerdict = "Incomplete"
)

// ComplianceReportStatus is the answer that the ledger gives.
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
	// OtherRejections are refused instances that broke no rule.
	OtherRejections int64
	BrokenChains    int64
	Violations      []ComplianceViolation
}

// ComplianceViolation is one violation and the records that show it.
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
