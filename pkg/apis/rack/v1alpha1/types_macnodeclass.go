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
	// status counts the Macs of the class. It is written by the controllers.
	// +optional
	Status MacNodeClassStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// MacNodeClassSpec describes the hardware of a class.
type MacNodeClassSpec struct {
	// model is the name people know, such as "Mac mini (2024)".
	Model string `json:"model" protobuf:"bytes,1,opt,name=model"`
	// modelIdentifiers are the identifiers that macOS reports for Macs of this class, such as "Mac16,10".
	// +listType=set
	// +optional
	ModelIdentifiers []string `json:"modelIdentifiers,omitempty" protobuf:"bytes,2,rep,name=modelIdentifiers"`
	// chip is the processor, such as "Apple M4".
	Chip string `json:"chip" protobuf:"bytes,3,opt,name=chip"`
	// capacity is what one Mac of this class has.
	Capacity MachineResources `json:"capacity" protobuf:"bytes,4,opt,name=capacity"`
	// hostReserved is what the host keeps for itself; the rest is for at most two virtual machines together.
	// +optional
	HostReserved MachineResources `json:"hostReserved,omitempty,omitzero" protobuf:"bytes,5,opt,name=hostReserved"`
	// sku is the article that is billed: one dedicated Mac for 24 hours.
	// +optional
	SKU string `json:"sku,omitempty" protobuf:"bytes,6,opt,name=sku"`
}

// MachineResources are amounts of what a Mac or a virtual machine is made of.
type MachineResources struct {
	// cpu is a number of processor cores, such as 10.
	// +optional
	CPU scalar.Quantity `json:"cpu,omitempty,omitzero" protobuf:"bytes,1,opt,name=cpu"`
	// memory is an amount in bytes, such as 16Gi or 16384Mi.
	// +optional
	Memory scalar.Quantity `json:"memory,omitempty,omitzero" protobuf:"bytes,2,opt,name=memory"`
	// storage is an amount of disk in bytes, such as 256Gi or 512G.
	// +optional
	Storage scalar.Quantity `json:"storage,omitempty,omitzero" protobuf:"bytes,3,opt,name=storage"`
}

// MacNodeClassStatus counts the Macs of a class, each in exactly one of the counts but total.
type MacNodeClassStatus struct {
	// total is the number of Macs of the class.
	// +optional
	Total int32 `json:"total" protobuf:"varint,1,opt,name=total"`
	// available is the number of Macs that a lease can be bound to now.
	// +optional
	Available int32 `json:"available" protobuf:"varint,2,opt,name=available"`
	// leased is the number of Macs that belong to a lease, those of held leases apart.
	// +optional
	Leased int32 `json:"leased" protobuf:"varint,3,opt,name=leased"`
	// held is the number of Macs whose lease was deleted before its floor and is Held, or is being released.
	// +optional
	Held int32 `json:"held" protobuf:"varint,4,opt,name=held"`
	// quarantined is the number of Macs in quarantine.
	// +optional
	Quarantined int32 `json:"quarantined" protobuf:"varint,5,opt,name=quarantined"`
	// offline is the number of Macs whose agent is not heard of, has never been, or that are in maintenance.
	// +optional
	Offline int32 `json:"offline" protobuf:"varint,6,opt,name=offline"`
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
