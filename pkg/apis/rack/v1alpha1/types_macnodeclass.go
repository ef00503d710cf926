package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeClass is an entry of the hardware catalogue: one kind of Mac that can be leased.
type MacNodeClass struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec describes the hardware.
	Spec MacNodeClassSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status counts the Macs of the class. Populated by the system. Read-only.
	// +optional
	Status MacNodeClassStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacNodeClassSpec describes the hardware of a class.
type MacNodeClassSpec struct {
	// model is the marketing name of the model, such as "Mac mini (2024)".
	Model string `json:"model" protobuf:"bytes,1,opt,name=model"`
	// modelIdentifiers lists the model identifiers reported by macOS for Macs of this class, such
	// as "Mac16,10".
	// +listType=set
	// +optional
	ModelIdentifiers []string `json:"modelIdentifiers,omitempty" protobuf:"bytes,2,rep,name=modelIdentifiers"`
	// chip is the processor, such as "Apple M4".
	Chip string `json:"chip" protobuf:"bytes,3,opt,name=chip"`
	// capacity is the total amount of resources of one Mac of this class.
	Capacity MachineResources `json:"capacity" protobuf:"bytes,4,opt,name=capacity"`
	// hostReserved is the amount of resources reserved for the host. The rest is shared by at most
	// two virtual machines.
	// +optional
	HostReserved MachineResources `json:"hostReserved,omitempty,omitzero" protobuf:"bytes,5,opt,name=hostReserved"`
	// sku is the billing SKU for one dedicated Mac for 24 hours.
	// +optional
	SKU string `json:"sku,omitempty" protobuf:"bytes,6,opt,name=sku"`
}

// MachineResources are the resources of a Mac or of a virtual machine.
type MachineResources struct {
	// cpu is the number of CPU cores, such as 10.
	// +optional
	CPU scalar.Quantity `json:"cpu,omitempty,omitzero" protobuf:"bytes,1,opt,name=cpu"`
	// memory is the amount of memory in bytes, such as 16Gi or 16384Mi.
	// +optional
	Memory scalar.Quantity `json:"memory,omitempty,omitzero" protobuf:"bytes,2,opt,name=memory"`
	// storage is the amount of disk space in bytes, such as 256Gi or 512G.
	// +optional
	Storage scalar.Quantity `json:"storage,omitempty,omitzero" protobuf:"bytes,3,opt,name=storage"`
}

// MacNodeClassStatus counts the Macs of a class. Each Mac is counted in total and in exactly one of
// available, leased, held, quarantined and offline.
type MacNodeClassStatus struct {
	// total is the number of Macs of the class.
	// +optional
	Total int32 `json:"total" protobuf:"varint,1,opt,name=total"`
	// available is the number of Macs that a lease can be bound to.
	// +optional
	Available int32 `json:"available" protobuf:"varint,2,opt,name=available"`
	// leased is the number of leased Macs, not including those of Held leases.
	// +optional
	Leased int32 `json:"leased" protobuf:"varint,3,opt,name=leased"`
	// held is the number of Macs whose lease is Held or Releasing.
	// +optional
	Held int32 `json:"held" protobuf:"varint,4,opt,name=held"`
	// quarantined is the number of Macs in quarantine.
	// +optional
	Quarantined int32 `json:"quarantined" protobuf:"varint,5,opt,name=quarantined"`
	// offline is the number of Macs that are Offline, Pending or in Maintenance.
	// +optional
	Offline int32 `json:"offline" protobuf:"varint,6,opt,name=offline"`
	// occupied is the number of Macs that belong to a lease, whatever else they are counted in.
	// Divided by total, it is the utilisation of the class.
	// +optional
	Occupied int32 `json:"occupied" protobuf:"varint,7,opt,name=occupied"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeClassList is a list of MacNodeClasses.
type MacNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []MacNodeClass `json:"items" protobuf:"bytes,2,rep,name=items"`
}
