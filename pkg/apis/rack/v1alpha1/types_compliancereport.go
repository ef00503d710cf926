package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +genclient:onlyVerbs=get,list
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ComplianceReport reports whether the three rules held in a time window. It is computed from the
// ledger alone, at each read. Its name is the window, in UTC: a duration up to now such as 24h or
// 90d, today, month (the current one), a month such as 2026-11, or two dates such as
// 2026-08-01..2026-11-01. The second date is not in the window.
type ComplianceReport struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// status is the result of the report. Read-only.
	// +optional
	Status ComplianceReportStatus `json:"status,omitempty" protobuf:"bytes,2,opt,name=status"`
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
	// verdict is the result in one word: Compliant, Violated or Incomplete.
	// +optional
	Verdict ComplianceVerdict `json:"verdict,omitempty" protobuf:"bytes,1,opt,name=verdict,casttype=ComplianceVerdict"`
	// from is the start of the window.
	// +optional
	From metav1.Time `json:"from,omitempty" protobuf:"bytes,2,opt,name=from"`
	// to is the end of the window.
	// +optional
	To metav1.Time `json:"to,omitempty" protobuf:"bytes,3,opt,name=to"`
	// coveredSince is the time at which the ledger began, if it began after the start of the
	// window.
	// +optional
	CoveredSince *metav1.Time `json:"coveredSince,omitempty" protobuf:"bytes,4,opt,name=coveredSince"`
	// records is the number of records in the window.
	// +optional
	Records int64 `json:"records" protobuf:"varint,5,opt,name=records"`
	// chassis is the number of Macs that have records in the window.
	// +optional
	Chassis int64 `json:"chassis" protobuf:"varint,6,opt,name=chassis"`
	// leases is the number of leases that had a Mac at any time in the window.
	// +optional
	Leases int64 `json:"leases" protobuf:"varint,7,opt,name=leases"`
	// vmStarts is the number of virtual machine starts granted in the window, including failed
	// launches.
	// +optional
	VMStarts int64 `json:"vmStarts" protobuf:"varint,8,opt,name=vmStarts"`
	// maxVMs is the maximum number of virtual machines that one Mac was allowed to run at a time.
	// The Mac never ran more than this number.
	// +optional
	MaxVMs int64 `json:"maxVMs" protobuf:"varint,9,opt,name=maxVMs"`
	// overlaps is the number of times that two tenants used a Mac at once.
	// +optional
	Overlaps int64 `json:"overlaps" protobuf:"varint,10,opt,name=overlaps"`
	// floorBreaches is the number of times that a Mac was released before its floor.
	// +optional
	FloorBreaches int64 `json:"floorBreaches" protobuf:"varint,11,opt,name=floorBreaches"`
	// rejected is the number of requests refused for one of the three rules, as counted by the
	// records.
	// +optional
	Rejected int64 `json:"rejected" protobuf:"varint,12,opt,name=rejected"`
	// brokenChains is the number of chains of records that have a gap, an edit or a fork.
	// +optional
	BrokenChains int64 `json:"brokenChains" protobuf:"varint,13,opt,name=brokenChains"`
	// violations lists the violations and their evidence. Maximum: 100 entries.
	// +listType=atomic
	// +optional
	Violations []ComplianceViolation `json:"violations,omitempty" protobuf:"bytes,14,rep,name=violations"`
	// otherRejections is the number of refused instances that broke no rule, for example because of
	// a missing lease, image or class, or of a full Mac. They are not included in rejected.
	// +optional
	OtherRejections int64 `json:"otherRejections,omitempty" protobuf:"varint,15,opt,name=otherRejections"`
}

// ComplianceViolation is a violation and the records that prove it.
type ComplianceViolation struct {
	// rule is the name of the violated rule: TwoVMsPerChassis, OneTenantPerChassis, TwentyFourHours
	// or UnbrokenLedger.
	Rule string `json:"rule" protobuf:"bytes,1,opt,name=rule"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,2,opt,name=serialNumber"`
	// time is the time of the violation.
	// +optional
	Time metav1.MicroTime `json:"time,omitempty" protobuf:"bytes,3,opt,name=time"`
	// message is a human-readable description of the violation.
	Message string `json:"message" protobuf:"bytes,4,opt,name=message"`
	// records lists the records that prove the violation, as namespace/name.
	// +listType=atomic
	// +optional
	Records []string `json:"records,omitempty" protobuf:"bytes,5,rep,name=records"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ComplianceReportList is a list of ComplianceReports.
type ComplianceReportList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []ComplianceReport `json:"items" protobuf:"bytes,2,rep,name=items"`
}
