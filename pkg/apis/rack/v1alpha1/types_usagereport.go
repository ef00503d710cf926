package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:noStatus
// +genclient:onlyVerbs=get,list
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// UsageReport reports the billable use of Macs by the leases of a namespace in a time window. It is
// computed from the ledger alone, at each read. Its name is the window, in UTC: today, month (the
// current one), a month such as 2026-11, a duration up to now such as 24h or 7d, or two dates such
// as 2026-08-01..2026-11-01. The second date is not in the window.
type UsageReport struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// status is the result of the report. Read-only.
	// +optional
	Status UsageReportStatus `json:"status,omitempty" protobuf:"bytes,2,opt,name=status"`
}

// UsageReportStatus is the result of a report.
type UsageReportStatus struct {
	// from is the start of the window.
	// +optional
	From metav1.Time `json:"from,omitempty" protobuf:"bytes,1,opt,name=from"`
	// to is the end of the window.
	// +optional
	To metav1.Time `json:"to,omitempty" protobuf:"bytes,2,opt,name=to"`
	// asOf is the time at which the records were read. Leases whose release was not recorded by
	// then count as running until then. Reports on a large ledger can be based on records that were
	// read some time ago.
	// +optional
	AsOf metav1.Time `json:"asOf,omitempty" protobuf:"bytes,3,opt,name=asOf"`
	// coveredSince is the time since which the ledger has all records, if it is after the start of
	// the window. Use before that time may be missing.
	// +optional
	CoveredSince *metav1.Time `json:"coveredSince,omitempty" protobuf:"bytes,4,opt,name=coveredSince"`
	// total is the use by all leases.
	// +optional
	Total Usage `json:"total" protobuf:"bytes,5,opt,name=total"`
	// running is the part of total by leases that had not released their Macs at asOf.
	// +optional
	Running Usage `json:"running" protobuf:"bytes,6,opt,name=running"`
	// unproven is the number of leases whose use the ledger does not prove, because records are
	// missing or were edited. They have the cause in leases[*].unproven.
	// +optional
	Unproven int64 `json:"unproven,omitempty" protobuf:"varint,7,opt,name=unproven"`
	// classes lists the use by class and SKU.
	// +listType=atomic
	// +optional
	Classes []ClassUsage `json:"classes,omitempty" protobuf:"bytes,8,rep,name=classes"`
	// leases lists the use by each lease, sorted by boundAt, with its records.
	// +listType=atomic
	// +optional
	Leases []LeaseUsage `json:"leases,omitempty" protobuf:"bytes,9,rep,name=leases"`
}

// Usage is the use of Macs in a window. Except for leases, the sum over consecutive windows is the
// number of the window of all of them.
type Usage struct {
	// leases is the number of leases that had a Mac at any time in the window.
	// +optional
	Leases int64 `json:"leases" protobuf:"varint,1,opt,name=leases"`
	// billableDays is the number of billed periods of 24 hours. The periods of a lease are counted
	// from its boundAt: the first starts at boundAt, the next 24 hours later, until its billable
	// time ends. Each started period is one billable day of the window in which it starts. The
	// billable time of a lease ends when it was deleted, but not before its floor. The scrub of the
	// Mac after that is not billed.
	// +optional
	BillableDays int64 `json:"billableDays" protobuf:"varint,2,opt,name=billableDays"`
	// chassisTime is the time for which leases had a Mac in the window, from boundAt to releasedAt,
	// including the scrub. Two Macs leased for an hour are 2h.
	// +optional
	ChassisTime metav1.Duration `json:"chassisTime" protobuf:"bytes,3,opt,name=chassisTime"`
	// heldTime is the part of chassisTime between the deletion of a lease and its floor.
	// +optional
	HeldTime metav1.Duration `json:"heldTime" protobuf:"bytes,4,opt,name=heldTime"`
}

// ClassUsage is the use of the Macs of a class.
type ClassUsage struct {
	// className is the name of the MacNodeClass at the binding. It is empty for leases whose
	// LeaseBound record does not have it.
	// +optional
	ClassName string `json:"className" protobuf:"bytes,1,opt,name=className"`
	// sku is the billing SKU of the class at the binding.
	// +optional
	SKU string `json:"sku,omitempty" protobuf:"bytes,2,opt,name=sku"`
	// total is the use by all leases of the class.
	// +optional
	Total Usage `json:"total" protobuf:"bytes,3,opt,name=total"`
	// running is the part of total by leases that had not released their Macs at asOf.
	// +optional
	Running Usage `json:"running" protobuf:"bytes,4,opt,name=running"`
}

// LeaseUsage is the use of a Mac by a lease, and the records that prove it.
type LeaseUsage struct {
	// name is the name of the lease.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// uid is the UID of the lease.
	// +optional
	UID types.UID `json:"uid,omitempty" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
	// className is the name of the MacNodeClass at the binding.
	// +optional
	ClassName string `json:"className,omitempty" protobuf:"bytes,3,opt,name=className"`
	// sku is the billing SKU of the class at the binding.
	// +optional
	SKU string `json:"sku,omitempty" protobuf:"bytes,4,opt,name=sku"`
	// serialNumber is the serial number of the Mac.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty" protobuf:"bytes,5,opt,name=serialNumber"`
	// boundAt is the time at which the lease was bound to the Mac. Its billable time starts then.
	// +optional
	BoundAt metav1.Time `json:"boundAt,omitempty" protobuf:"bytes,6,opt,name=boundAt"`
	// earliestReleaseAt is the floor of the lease.
	// +optional
	EarliestReleaseAt metav1.Time `json:"earliestReleaseAt,omitempty" protobuf:"bytes,7,opt,name=earliestReleaseAt"`
	// deletedAt is the time at which the lease was deleted. It is not set while the lease is Bound.
	// +optional
	DeletedAt *metav1.Time `json:"deletedAt,omitempty" protobuf:"bytes,8,opt,name=deletedAt"`
	// billableUntil is the time at which the billable time ends: deletedAt, but not before the
	// floor. It is not set while the lease is Bound.
	// +optional
	BillableUntil *metav1.Time `json:"billableUntil,omitempty" protobuf:"bytes,9,opt,name=billableUntil"`
	// releasedAt is the time at which the lease released the Mac.
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty" protobuf:"bytes,10,opt,name=releasedAt"`
	// billableDays is the number of periods of 24 hours that start in the window, counted from
	// boundAt.
	// +optional
	BillableDays int64 `json:"billableDays" protobuf:"varint,11,opt,name=billableDays"`
	// chassisTime is the time in the window between boundAt and releasedAt.
	// +optional
	ChassisTime metav1.Duration `json:"chassisTime" protobuf:"bytes,12,opt,name=chassisTime"`
	// heldTime is the time in the window between deletedAt and the floor.
	// +optional
	HeldTime metav1.Duration `json:"heldTime" protobuf:"bytes,13,opt,name=heldTime"`
	// records lists the records that the times follow from, as namespace/name: the binding, the
	// last change of the floor, the hold and the release.
	// +listType=atomic
	// +optional
	Records []string `json:"records,omitempty" protobuf:"bytes,14,rep,name=records"`
	// unproven is the cause if the records do not prove the use. The lease then counts only for the
	// time that remaining records prove, and up to its floor.
	// +optional
	Unproven string `json:"unproven,omitempty" protobuf:"bytes,15,opt,name=unproven"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// UsageReportList is a list of UsageReports.
type UsageReportList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []UsageReport `json:"items" protobuf:"bytes,2,rep,name=items"`
}
