package cost

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/config"
	configvalidation "macrack.io/macrack/pkg/apis/config/validation"
	"macrack.io/macrack/pkg/apis/image"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	imagevalidation "macrack.io/macrack/pkg/apis/image/validation"
	"macrack.io/macrack/pkg/apis/instance"
	instancevalidation "macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/apis/metadata"
	"macrack.io/macrack/pkg/apis/rack"
	rackvalidation "macrack.io/macrack/pkg/apis/rack/validation"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/registry/values"
)

// request is the maximum size of a request's body, in bytes.
const request = 3 << 20

// A validator is a validation function, and an object that it accepts.
type validator struct {
	name     string
	valid    func() runtime.Object
	validate func(obj, old runtime.Object) field.ErrorList
}

func created[T runtime.Object](name string, valid func() runtime.Object, f func(T) field.ErrorList) validator {
	return validator{name, valid, func(obj, _ runtime.Object) field.ErrorList { return f(obj.(T)) }}
}

// oversized is the store's check of the size of an update, before the validator.
func oversized(obj, old runtime.Object) field.ErrorList {
	return metadata.Oversized(obj.(metav1.ObjectMetaAccessor), old.(metav1.ObjectMetaAccessor))
}

func updated[T runtime.Object](name string, valid func() runtime.Object, f func(obj, old T) field.ErrorList) validator {
	return validator{name, valid, func(obj, old runtime.Object) field.ErrorList {
		if errs := oversized(obj, old); len(errs) > 0 {
			return errs
		}
		return f(obj.(T), old.(T))
	}}
}

// validators are all validation functions for requests. TestEveryValidatorIsMeasured compares them
// with the code.
var validators = []validator{
	created("ValidateRackConfig", rackConfig, configvalidation.ValidateRackConfig),
	updated("ValidateRackConfigUpdate", rackConfig, configvalidation.ValidateRackConfigUpdate),
	updated("ValidateRackConfigStatusUpdate", rackConfig, configvalidation.ValidateRackConfigStatusUpdate),
	created("ValidateMacOSImage", macOSImage, imagevalidation.ValidateMacOSImage),
	updated("ValidateMacOSImageUpdate", macOSImage, imagevalidation.ValidateMacOSImageUpdate),
	updated("ValidateMacOSImageStatusUpdate", macOSImage, imagevalidation.ValidateMacOSImageStatusUpdate),
	created("ValidateManifest", macOSImageManifest, imagevalidation.ValidateManifest),
	created("ValidateInstanceClass", instanceClass, instancevalidation.ValidateInstanceClass),
	updated("ValidateInstanceClassUpdate", instanceClass, instancevalidation.ValidateInstanceClassUpdate),
	created("ValidateMacOSInstance", macOSInstance, instancevalidation.ValidateMacOSInstance),
	updated("ValidateMacOSInstanceUpdate", macOSInstance, instancevalidation.ValidateMacOSInstanceUpdate),
	updated("ValidateMacOSInstanceStatusUpdate", macOSInstance, instancevalidation.ValidateMacOSInstanceStatusUpdate),
	created("ValidateMacOSInstanceStop", func() runtime.Object { return &instance.MacOSInstanceStop{Reason: "Because"} }, instancevalidation.ValidateMacOSInstanceStop),
	created("ValidateAuditRecord", auditRecord, rackvalidation.ValidateAuditRecord),
	created("ValidateMacNode", macNode, rackvalidation.ValidateMacNode),
	updated("ValidateMacNodeUpdate", macNode, rackvalidation.ValidateMacNodeUpdate),
	updated("ValidateMacNodeStatusUpdate", macNode, rackvalidation.ValidateMacNodeStatusUpdate),
	created("ValidateMacNodeClass", macNodeClass, rackvalidation.ValidateMacNodeClass),
	updated("ValidateMacNodeClassUpdate", macNodeClass, rackvalidation.ValidateMacNodeClassUpdate),
	updated("ValidateMacNodeClassStatusUpdate", macNodeClass, rackvalidation.ValidateMacNodeClassStatusUpdate),
	created("ValidateMacNodeLease", macNodeLease, rackvalidation.ValidateMacNodeLease),
	updated("ValidateMacNodeLeaseUpdate", macNodeLease, rackvalidation.ValidateMacNodeLeaseUpdate),
	updated("ValidateMacNodeLeaseStatusUpdate", macNodeLease, rackvalidation.ValidateMacNodeLeaseStatusUpdate),
	created("ValidateMacNodeLeaseBinding", func() runtime.Object { return &rack.MacNodeLeaseBinding{NodeName: "mac-1"} }, rackvalidation.ValidateMacNodeLeaseBinding),
	created("ValidateMacNodeRestore", func() runtime.Object {
		return &rack.MacNodeRestore{WitnessHash: "4f1c92d0a8b35e67", WrongMacs: []string{"mac-1"}}
	}, rackvalidation.ValidateMacNodeRestore),
	created("ValidateMacNodeLeaseRelease", func() runtime.Object {
		return &rack.MacNodeLeaseRelease{NodeTaints: []string{"macrack.io/unleased:NoSchedule"}}
	}, rackvalidation.ValidateMacNodeLeaseRelease),
	// Refused before the checks of Kubernetes, and by the codec of the storage.
	{"metadata.Oversized", macOSInstance, oversized},
	{"values.Codec", macOSInstance, func(obj, _ runtime.Object) field.ErrorList {
		obj.(*instance.MacOSInstance).Status = instance.MacOSInstanceStatus{} // as PrepareForCreate does
		if errs := instancevalidation.ValidateMacOSInstance(obj.(*instance.MacOSInstance)); len(errs) > 0 {
			return errs
		}
		if err := values.NewCodec(schema.GroupResource{}, noCodec{}).Encode(obj, io.Discard); err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
		return nil
	}},
}

// noCodec encodes every object as nothing.
type noCodec struct{ runtime.Codec }

func (noCodec) Encode(runtime.Object, io.Writer) error { return nil }

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "6a1ee0bc-8d1e-4d0e-8e0e-000000000000", ResourceVersion: "1", Generation: 1}
}

func rackConfig() runtime.Object {
	free := scalar.MustParse("20Gi")
	return &config.RackConfig{ObjectMeta: objectMeta("", "default"), Spec: config.RackConfigSpec{
		Audit: config.AuditConfig{Retention: scalar.NewDays(90 * 24 * time.Hour)}, ImageCache: config.ImageCacheConfig{MinimumFree: &free},
		Agent:      config.AgentConfig{HeartbeatInterval: scalar.NewDuration(10 * time.Second), OfflineAfter: scalar.NewDuration(90 * time.Second)},
		Quarantine: config.QuarantineConfig{Reboot: config.RebootNever},
	}}
}

func macOSImage() runtime.Object {
	digest := "sha256:" + strings.Repeat("0a", 32)
	return &image.MacOSImage{ObjectMeta: objectMeta("", "macos-26"), Spec: image.MacOSImageSpec{
		Contents: []image.ImageContent{{Name: image.ContentMacOS, Version: "26.1"}, {Name: image.ContentGuestAgent, Version: "1.0"}},
		Source:   image.ImageSource{Reference: "registry.example.com/macos:26.1", Digest: digest}, DiskSize: scalar.MustParse("60Gi"),
	}, Status: image.MacOSImageStatus{Phase: image.MacOSImagePending}}
}

func macOSImageManifest() runtime.Object {
	external := &imagev1alpha1.MacOSImage{}
	if err := imagev1alpha1.Convert_image_MacOSImage_To_v1alpha1_MacOSImage(macOSImage().(*image.MacOSImage), external, nil); err != nil {
		panic(err)
	}
	return external
}

func instanceClass() runtime.Object {
	return &instance.InstanceClass{ObjectMeta: objectMeta("", "small"), Spec: instance.InstanceClassSpec{
		Resources:       instance.InstanceClassResources{CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi"), Storage: scalar.MustParse("64Gi")},
		Synchronization: instance.DiskSynchronizationFsync,
		Network:         instance.Network{Mode: instance.NetworkIsolated},
	}}
}

func macOSInstance() runtime.Object {
	return &instance.MacOSInstance{ObjectMeta: objectMeta("acme", "vm"), Spec: instance.MacOSInstanceSpec{
		LeaseName: "build", ClassName: "small", ImageName: "macos-26",
		Resources: instance.InstanceResources{Requests: instance.ResourceList{"macrack.io/macos-vm": scalar.MustParse("1")}},
	}, Status: instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending}}
}

func auditRecord() runtime.Object {
	return &rack.AuditRecord{
		ObjectMeta: objectMeta("acme", ""), Type: rack.InstanceRejected, Chassis: rack.AuditChassis{NodeName: "mac-1"}, Tenant: "acme",
		Details: rack.AuditDetails{Layer: rack.LayerAgent, Reason: "SlotsFull"},
	}
}

func macNode() runtime.Object {
	return &rack.MacNode{
		ObjectMeta: objectMeta("", "mac-1"), Spec: rack.MacNodeSpec{SerialNumber: "C07AAAAA0001", ClassName: "base"},
		Status: rack.MacNodeStatus{Phase: rack.MacNodePending},
	}
}

func macNodeClass() runtime.Object {
	resources := rack.MachineResources{CPU: scalar.MustParse("10"), Memory: scalar.MustParse("24Gi"), Storage: scalar.MustParse("512Gi")}
	return &rack.MacNodeClass{ObjectMeta: objectMeta("", "base"), Spec: rack.MacNodeClassSpec{Model: "Mac mini", Chip: "M4", ModelIdentifiers: []string{"Mac16,10"}, Capacity: resources}}
}

func macNodeLease() runtime.Object {
	return &rack.MacNodeLease{ObjectMeta: objectMeta("acme", "build"), Spec: rack.MacNodeLeaseSpec{ClassName: "base"}, Status: rack.MacNodeLeaseStatus{Phase: rack.MacNodeLeasePending}}
}

// patterns are the texts that fill fields, repeated up to a length: the most expensive ones for the
// parsers and patterns of names, versions, amounts, keys and references.
var patterns = []string{"a", "1", "a.", "-", "26.1-", "=", "\xff", "A1", "\"", "ssh-ed25519 ", "d1h", "é", "0.0e"}

// texts are short and expensive texts.
var texts = []string{"1e1000000000", "-1e-999999999", "9223372036854775807d9223372036854775807h", "1e99", "1e-99", "999999999999999999999999999999999999999999999999999999999999999P", "0." + strings.Repeat("0", 60) + "1"}

// An input is a change that makes an object expensive.
type input struct {
	name  string
	apply func(runtime.Object)
}

// inputs returns inputs for each text, list and map of a type: some fill a whole request, others
// are as large as the limit of one of their parts allows.
func inputs(v validator) []input {
	var all []input
	example := v.valid()
	for _, path := range leaves(reflect.TypeOf(example).Elem(), nil, "") {
		if strings.HasPrefix(path.name, ".ObjectMeta") && !checksAllMetadata[v.name] {
			continue // the same code checks the metadata of all kinds; extremes cover each kind
		}
		switch path.kind {
		case reflect.String:
			for _, p := range patterns {
				for _, length := range []int{250, 4 << 10, request} {
					all = append(all, input{fmt.Sprintf("%s=%q*%d", path.name, p, length), func(obj runtime.Object) {
						path.at(obj).SetString(strings.Repeat(p, length/len(p)+1)[:length])
					}})
				}
			}
			for _, text := range texts {
				all = append(all, input{fmt.Sprintf("%s=%.20q", path.name, text), func(obj runtime.Object) { path.at(obj).SetString(text) }})
			}
		case reflect.Slice:
			for _, length := range []int{16, 64, 256, 10000, request / 32} {
				for _, p := range []string{"a", "A", "\xff"} {
					all = append(all, input{fmt.Sprintf("%d*%s of %q", length, path.name, p), func(obj runtime.Object) { fillSlice(path.at(obj), length, p) }})
				}
			}
		case reflect.Map:
			for _, entries := range []int{16, 4000, request / 32} {
				for _, p := range []string{"k", "\xff", "k/"} {
					all = append(all, input{fmt.Sprintf("%d*%s of %q", entries, path.name, p), func(obj runtime.Object) { fillMap(path.at(obj), entries, p) }})
				}
			}
		}
	}
	return append(all, extremes(example)...)
}

// checksAllMetadata names the validators that are tried with each part of the metadata.
var checksAllMetadata = map[string]bool{"ValidateMacOSInstance": true, "ValidateMacOSInstanceStatusUpdate": true, "values.Codec": true, "metadata.Oversized": true}

// A leaf is a text, a list or a map of a type.
type leaf struct {
	name  string
	kind  reflect.Kind
	steps []int // indexes of fields; lists, maps and pointers on the way have one element
}

var opaque = map[reflect.Type]bool{reflect.TypeFor[metav1.TypeMeta](): true, reflect.TypeFor[metav1.Time](): true, reflect.TypeFor[metav1.MicroTime](): true}

func leaves(t reflect.Type, steps []int, name string) []leaf {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case opaque[t]:
		return nil
	case t == reflect.TypeFor[metav1.FieldsV1]():
		return nil // see extremes
	}
	switch t.Kind() {
	case reflect.String:
		return []leaf{{name, reflect.String, steps}}
	case reflect.Struct:
		var all []leaf
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				all = append(all, leaves(f.Type, append(append([]int{}, steps...), i), name+"."+f.Name)...)
			}
		}
		return all
	case reflect.Slice:
		return append(leaves(t.Elem(), append(append([]int{}, steps...), -1), name+"[0]"), leaf{name, reflect.Slice, steps})
	case reflect.Map:
		return []leaf{{name, reflect.Map, steps}}
	}
	return nil
}

// at returns the value of a leaf, and creates the values on the way.
func (l leaf) at(obj runtime.Object) reflect.Value {
	v := reflect.ValueOf(obj).Elem()
	deref := func() {
		for v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
	}
	for _, step := range l.steps {
		deref()
		if step >= 0 {
			v = v.Field(step)
			continue
		}
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		v = v.Index(0)
	}
	deref()
	return v
}

// fillSlice gives a list n elements, whose texts begin with p and differ.
func fillSlice(v reflect.Value, n int, p string) {
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	for i := range n {
		fillTexts(v.Index(i), fmt.Sprintf("%s%d", p, i))
	}
}

func fillTexts(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Field(i).Kind() == reflect.String {
				v.Field(i).SetString(text)
			}
		}
	}
}

func fillMap(v reflect.Value, n int, p string) {
	v.Set(reflect.MakeMap(v.Type()))
	for i := range n {
		value := reflect.New(v.Type().Elem()).Elem()
		fillTexts(value, p)
		v.SetMapIndex(reflect.ValueOf(fmt.Sprintf("%s%d", p, i)).Convert(v.Type().Key()), value)
	}
}

// extremes returns the inputs that are large in more than one place.
func extremes(example runtime.Object) []input {
	all := []input{
		{"conditions at their limits", func(obj runtime.Object) {
			if conditions := conditionsOf(obj); conditions != nil {
				for i := range 32 {
					*conditions = append(*conditions, metav1.Condition{
						Type: fmt.Sprintf("example.com/%s%d", strings.Repeat("a", 60), i), Status: "Other", Reason: strings.Repeat("a", 900) + " ", Message: strings.Repeat("é", 500),
					})
				}
			}
		}},
		{"labels and annotations at their limits", func(obj runtime.Object) {
			m := obj.(metav1.Object)
			labels, annotations := map[string]string{}, map[string]string{}
			for i := range 2600 { // of 24 bytes each, as stored, and invalid
				labels[fmt.Sprintf("-%d", i)], annotations[fmt.Sprintf("-%d", i)] = "-", "-"
			}
			m.SetLabels(labels)
			m.SetAnnotations(annotations)
		}},
		{"owners and finalizers at their limits", func(obj runtime.Object) {
			m := obj.(metav1.Object)
			for i := range 16 {
				m.SetOwnerReferences(append(m.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "a/b/c", Kind: strings.Repeat("k", 250), Name: strings.Repeat("n", 250), UID: types.UID(strings.Repeat("u", 250))}))
				m.SetFinalizers(append(m.GetFinalizers(), fmt.Sprintf("macrack.io/%s%d", strings.Repeat("a.", 80), i)))
			}
		}},
	}
	for name, fields := range map[string]string{
		"deep":   strings.Repeat(`{"f:a":`, request/8) + "{}" + strings.Repeat("}", request/8),
		"broad":  "{" + strings.Repeat(`"f:a":{},`, request/10) + `"f:b":{}}`,
		"values": `{"f:a":{` + strings.Repeat(`"v:{\"a\":1}":{},`, request/20) + `"f:b":{}}}`,
		"keys":   `{"f:a":{` + strings.Repeat(`"k:{\"a\":1e99}":{},`, request/22) + `"f:b":{}}}`,
		"broken": strings.Repeat("{", request),
	} {
		all = append(all, input{name + " managed fields", func(obj runtime.Object) {
			obj.(metav1.Object).SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}})
		}})
	}
	if _, ok := example.(metav1.Object); !ok {
		return nil
	}
	return all
}

func conditionsOf(obj runtime.Object) *[]metav1.Condition {
	status := reflect.ValueOf(obj).Elem().FieldByName("Status")
	if !status.IsValid() {
		return nil
	}
	conditions := status.FieldByName("Conditions")
	if !conditions.IsValid() {
		return nil
	}
	return conditions.Addr().Interface().(*[]metav1.Condition)
}

func TestValidObjectsAreValid(t *testing.T) {
	for _, v := range validators {
		if v.name == "ValidateAuditRecord" {
			continue // it only names its namespace
		}
		require.Empty(t, v.validate(v.valid(), v.valid()), v.name)
	}
}
