package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// UsageReport reports the billable use of Macs by the leases of a namespace in a time window. It is
// computed from the ledger alone, at each read. Its name is the window.
type UsageReport struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Status UsageReportStatus
}

// UsageReportStatus is the result of a report.
type UsageReportStatus struct {
	From metav1.Time
	To   metav1.Time
	// AsOf is the time at which the records were read.
	AsOf         metav1.Time
	CoveredSince *metav1.Time
	Total        Usage
	// Running is the part of Total by leases that had not released their Macs.
	Running Usage
	// Unproven is the number of leases whose use the ledger does not prove.
	Unproven int64
	Classes  []ClassUsage
	Leases   []LeaseUsage
}

// Usage is the use of Macs in a window.
type Usage struct {
	Leases int64
	// BillableDays is the number of periods of 24 hours that start in the window.
	BillableDays int64
	ChassisTime  metav1.Duration
	HeldTime     metav1.Duration
}

// ClassUsage is the use of the Macs of a class.
type ClassUsage struct {
	ClassName string
	SKU       string
	Total     Usage
	Running   Usage
}

// LeaseUsage is the use of a Mac by a lease, and the records that prove it.
type LeaseUsage struct {
	Name              string
	UID               types.UID
	ClassName         string
	SKU               string
	SerialNumber      string
	BoundAt           metav1.Time
	EarliestReleaseAt metav1.Time
	DeletedAt         *metav1.Time
	BillableUntil     *metav1.Time
	ReleasedAt        *metav1.Time
	BillableDays      int64
	ChassisTime       metav1.Duration
	HeldTime          metav1.Duration
	Records           []string
	Unproven          string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// UsageReportList is a list of UsageReports.
type UsageReportList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []UsageReport
}
