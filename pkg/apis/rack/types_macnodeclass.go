package rack

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeClass is an entry of the hardware catalogue: one kind of Mac that can be leased.
type MacNodeClass struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   MacNodeClassSpec
	Status MacNodeClassStatus
}

// MacNodeClassSpec describes the hardware of a class.
type MacNodeClassSpec struct {
	Model            string
	ModelIdentifiers []string
	Chip             string
	Capacity         MachineResources
	HostReserved     MachineResources
	SKU              string
}

// MachineResources are the resources of a Mac or of a virtual machine.
type MachineResources struct {
	CPU     scalar.Quantity
	Memory  scalar.Quantity
	Storage scalar.Quantity
}

// MacNodeClassStatus counts the Macs of a class. Each Mac is counted in Total and in exactly one of
// Available, Leased, Held, Quarantined and Offline.
type MacNodeClassStatus struct {
	Total       int32
	Available   int32
	Leased      int32
	Held        int32
	Quarantined int32
	Offline     int32
	// Occupied is the number of Macs that belong to a lease.
	Occupied int32
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MacNodeClassList is a list of MacNodeClasses.
type MacNodeClassList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []MacNodeClass
}
