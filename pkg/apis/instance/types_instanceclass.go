package instance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClass is a size of virtual machine. Its spec cannot be changed: a new size is a new class.
type InstanceClass struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec InstanceClassSpec
}

// InstanceClassSpec is a size of virtual machine.
type InstanceClassSpec struct {
	Resources InstanceClassResources
	Display   *Display
}

// InstanceClassResources is what a virtual machine is given.
type InstanceClassResources struct {
	CPU     scalar.Quantity
	Memory  scalar.Quantity
	Storage scalar.Quantity
}

// Display is the screen of a virtual machine.
type Display struct {
	Width         int32
	Height        int32
	PixelsPerInch int32
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClassList is a list of InstanceClasses.
type InstanceClassList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []InstanceClass
}
