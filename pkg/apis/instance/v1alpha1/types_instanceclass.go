package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/scalar"
)

// +genclient
// +genclient:nonNamespaced
// +genclient:noStatus
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClass is a size of virtual machine. Its spec cannot be changed: a new size is a new class.
type InstanceClass struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of objects.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the size.
	Spec InstanceClassSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
}

// InstanceClassSpec is a size of virtual machine.
type InstanceClassSpec struct {
	// resources is what the virtual machine is given.
	Resources InstanceClassResources `json:"resources" protobuf:"bytes,1,opt,name=resources"`
	// display is the screen of the virtual machine; 1920 x 1200 at 144 pixels per inch by default.
	// +optional
	Display *Display `json:"display,omitempty" protobuf:"bytes,2,opt,name=display"`
}

// InstanceClassResources is what a virtual machine is given.
type InstanceClassResources struct {
	// cpu is a whole number of processor cores, such as 4.
	CPU scalar.Quantity `json:"cpu,omitzero" protobuf:"bytes,1,opt,name=cpu"`
	// memory is an amount in bytes, in whole MiB, such as 8Gi or 8192Mi.
	Memory scalar.Quantity `json:"memory,omitzero" protobuf:"bytes,2,opt,name=memory"`
	// storage is the size of the disk in bytes, such as 64Gi. An image's disk is grown to it.
	// +optional
	Storage scalar.Quantity `json:"storage,omitempty,omitzero" protobuf:"bytes,3,opt,name=storage"`
}

// Display is the screen of a virtual machine.
type Display struct {
	// width is in pixels.
	Width int32 `json:"width" protobuf:"varint,1,opt,name=width"`
	// height is in pixels.
	Height int32 `json:"height" protobuf:"varint,2,opt,name=height"`
	// pixelsPerInch is the density.
	// +optional
	PixelsPerInch int32 `json:"pixelsPerInch,omitempty" protobuf:"varint,3,opt,name=pixelsPerInch"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceClassList is a list of InstanceClasses.
type InstanceClassList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard metadata of lists.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	Items []InstanceClass `json:"items" protobuf:"bytes,2,rep,name=items"`
}
