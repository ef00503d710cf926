package apiserver

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"macrack.io/macrack/pkg/apis/config"
	configvalidation "macrack.io/macrack/pkg/apis/config/validation"
	"macrack.io/macrack/pkg/apis/image"
	imagevalidation "macrack.io/macrack/pkg/apis/image/validation"
	"macrack.io/macrack/pkg/apis/instance"
	instancevalidation "macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/apis/rack"
	rackvalidation "macrack.io/macrack/pkg/apis/rack/validation"
)

// FuzzDecode looks for bytes that break what reads requests and etcd, or that read as an object
// which is another one when it has been written and read again.
func FuzzDecode(f *testing.F) {
	for _, gv := range versions {
		for kind := range Scheme.KnownTypes(gv) {
			obj, err := Scheme.New(gv.WithKind(kind))
			if err != nil {
				f.Fatal(err)
			}
			obj.GetObjectKind().SetGroupVersionKind(gv.WithKind(kind))
			for _, info := range Codecs.SupportedMediaTypes() {
				if data, err := runtime.Encode(Codecs.EncoderForVersion(info.Serializer, gv), obj); err == nil {
					f.Add(data)
				}
			}
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	storage := Codecs.CodecForVersions(info.Serializer, Codecs.UniversalDeserializer(), schema.GroupVersions(versions), runtime.InternalGroupVersioner)
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, err := runtime.Decode(storage, data)
		if err != nil {
			return
		}
		written, err := runtime.Encode(storage, obj)
		if err != nil {
			return // what cannot be written is not stored
		}
		again, err := runtime.Decode(storage, written)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		twice, err := runtime.Encode(storage, again)
		if err != nil {
			t.Fatal(err)
		}
		thrice, err := runtime.Decode(storage, twice)
		if err != nil || !equality.Semantic.DeepEqual(again, thrice) {
			t.Fatalf("%T changes as it is stored: %v", obj, err)
		}
	})
}

// FuzzValidate looks for objects that break their validation.
func FuzzValidate(f *testing.F) {
	seeds := []any{
		&rack.MacNode{}, &rack.MacNodeClass{}, &rack.AuditRecord{}, &rack.MacNodeLeaseBinding{}, &rack.MacNodeLeaseRelease{},
		&instance.InstanceClass{}, &instance.MacOSInstanceStop{}, &image.MacOSImage{}, &config.RackConfig{},
	}
	for i, seed := range seeds {
		data, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), data, data)
	}
	f.Fuzz(func(_ *testing.T, kind byte, data, oldData []byte) {
		switch seeds[int(kind)%len(seeds)].(type) {
		case *rack.MacNode:
			if obj, old := parse[rack.MacNode](data), parse[rack.MacNode](oldData); obj != nil && old != nil {
				rackvalidation.ValidateMacNode(obj)
				rackvalidation.ValidateMacNodeUpdate(obj, old)
				rackvalidation.ValidateMacNodeStatusUpdate(obj, old)
			}
		case *rack.MacNodeClass:
			if obj, old := parse[rack.MacNodeClass](data), parse[rack.MacNodeClass](oldData); obj != nil && old != nil {
				rackvalidation.ValidateMacNodeClass(obj)
				rackvalidation.ValidateMacNodeClassUpdate(obj, old)
				rackvalidation.ValidateMacNodeClassStatusUpdate(obj, old)
			}
		case *rack.AuditRecord:
			if obj := parse[rack.AuditRecord](data); obj != nil {
				rackvalidation.ValidateAuditRecord(obj)
			}
		case *rack.MacNodeLeaseBinding:
			if obj := parse[rack.MacNodeLeaseBinding](data); obj != nil {
				rackvalidation.ValidateMacNodeLeaseBinding(obj)
			}
		case *rack.MacNodeLeaseRelease:
			if obj := parse[rack.MacNodeLeaseRelease](data); obj != nil {
				rackvalidation.ValidateMacNodeLeaseRelease(obj)
			}
		case *instance.InstanceClass:
			if obj, old := parse[instance.InstanceClass](data), parse[instance.InstanceClass](oldData); obj != nil && old != nil {
				instancevalidation.ValidateInstanceClass(obj)
				instancevalidation.ValidateInstanceClassUpdate(obj, old)
			}
		case *instance.MacOSInstanceStop:
			if obj := parse[instance.MacOSInstanceStop](data); obj != nil {
				instancevalidation.ValidateMacOSInstanceStop(obj)
			}
		case *image.MacOSImage:
			if obj, old := parse[image.MacOSImage](data), parse[image.MacOSImage](oldData); obj != nil && old != nil {
				imagevalidation.ValidateMacOSImage(obj)
				imagevalidation.ValidateMacOSImageUpdate(obj, old)
				imagevalidation.ValidateMacOSImageStatusUpdate(obj, old)
			}
		case *config.RackConfig:
			if obj, old := parse[config.RackConfig](data), parse[config.RackConfig](oldData); obj != nil && old != nil {
				configvalidation.ValidateRackConfig(obj)
				configvalidation.ValidateRackConfigUpdate(obj, old)
			}
		}
	})
}

func parse[T any](data []byte) *T {
	obj := new(T)
	if json.Unmarshal(data, obj) != nil {
		return nil
	}
	return obj
}
