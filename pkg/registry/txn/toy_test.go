// Four small resources with rules across them.
package txn_test

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
)

var (
	GV        = schema.GroupVersion{Group: "toy.example", Version: "v1"}
	Instances = GV.WithResource("instances").GroupResource()
	Leases    = GV.WithResource("leases").GroupResource()
	Nodes     = GV.WithResource("nodes").GroupResource()
	Records   = GV.WithResource("records").GroupResource()

	Scheme = runtime.NewScheme()
	Codec  runtime.Codec
)

func init() {
	Scheme.AddKnownTypes(GV, &Instance{}, &InstanceList{}, &Lease{}, &LeaseList{}, &Node{}, &NodeList{}, &Record{}, &RecordList{})
	metav1.AddToGroupVersion(Scheme, GV)
	codecs := serializer.NewCodecFactory(Scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	Codec = codecs.CodecForVersions(info.Serializer, info.Serializer, GV, GV)
}

type Instance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Lease   string `json:"lease"`
	Slot    int    `json:"slot"`
	Machine string `json:"machine,omitempty"` // unique
	Note    string `json:"note,omitempty"`
}

// Slots is how many instances a lease has room for.
const Slots = 2

// Occupant is the instance in a slot, or is zero.
type Occupant struct {
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	UID       types.UID `json:"uid,omitempty"`
}

type Lease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Node  string          `json:"node,omitempty"`
	Slots [Slots]Occupant `json:"slots"`
}

type Node struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Lease string `json:"lease,omitempty"`
}

// Record tells of one change of one object. Those of a lease are a chain.
type Record struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Verb       string    `json:"verb"`
	Subject    string    `json:"subject"`
	SubjectUID types.UID `json:"subjectUID"`
	User       string    `json:"user,omitempty"`
	Lease      string    `json:"lease"`
	Sequence   int       `json:"sequence"`
}

type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []T `json:"items"`
}

type (
	InstanceList struct{ List[Instance] }
	LeaseList    struct{ List[Lease] }
	NodeList     struct{ List[Node] }
	RecordList   struct{ List[Record] }
)

// clone copies what has no references but in its metadata.
func clone[T any](in *T, meta func(*T) *metav1.ObjectMeta) *T {
	out := *in
	meta(in).DeepCopyInto(meta(&out))
	return &out
}

func (in *Instance) DeepCopyObject() runtime.Object {
	return clone(in, func(o *Instance) *metav1.ObjectMeta { return &o.ObjectMeta })
}
func (in *Lease) DeepCopyObject() runtime.Object {
	return clone(in, func(o *Lease) *metav1.ObjectMeta { return &o.ObjectMeta })
}
func (in *Node) DeepCopyObject() runtime.Object {
	return clone(in, func(o *Node) *metav1.ObjectMeta { return &o.ObjectMeta })
}
func (in *Record) DeepCopyObject() runtime.Object {
	return clone(in, func(o *Record) *metav1.ObjectMeta { return &o.ObjectMeta })
}

func cloneItems[T any](items []T, deepCopy func(*T) runtime.Object) []T {
	out := make([]T, len(items))
	for i := range items {
		out[i] = reflect.ValueOf(deepCopy(&items[i])).Elem().Interface().(T)
	}
	return out
}

func (in *InstanceList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = cloneItems(in.Items, (*Instance).DeepCopyObject)
	return &out
}
func (in *LeaseList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = cloneItems(in.Items, (*Lease).DeepCopyObject)
	return &out
}
func (in *NodeList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = cloneItems(in.Items, (*Node).DeepCopyObject)
	return &out
}
func (in *RecordList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = cloneItems(in.Items, (*Record).DeepCopyObject)
	return &out
}
