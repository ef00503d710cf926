package apiserver

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/config"
	configvalidation "macrack.io/macrack/pkg/apis/config/validation"
	"macrack.io/macrack/pkg/apis/image"
	imagevalidation "macrack.io/macrack/pkg/apis/image/validation"
	"macrack.io/macrack/pkg/apis/instance"
	instancevalidation "macrack.io/macrack/pkg/apis/instance/validation"
	"macrack.io/macrack/pkg/apis/rack"
	rackvalidation "macrack.io/macrack/pkg/apis/rack/validation"
)

// maxAllocated is the maximum number of bytes that a validation may allocate.
const maxAllocated = 10 << 20

// worstTexts are texts as large as a request, and short ones that are costly to calculate with.
var worstTexts = []string{
	strings.Repeat("a", 3<<20), strings.Repeat("1", 3<<20), "0." + strings.Repeat("0", 3<<20) + "1", strings.Repeat("\xff", 3<<20), strings.Repeat("a/", 3<<19), strings.Repeat("1h", 3<<19),
	"1e1000000000", "1e-1000000000", "1E999999999", strings.Repeat("9", 1000) + "Ei",
}

// validators are all validators, of a new object and of a change from an empty one.
var validators = map[string]struct {
	obj      any
	validate func(obj any) field.ErrorList
}{
	"MacNode": {&rack.MacNode{}, func(o any) field.ErrorList { return rackvalidation.ValidateMacNode(o.(*rack.MacNode)) }},
	"MacNode status": {&rack.MacNode{}, func(o any) field.ErrorList {
		return rackvalidation.ValidateMacNodeStatusUpdate(o.(*rack.MacNode), &rack.MacNode{})
	}},
	"MacNodeClass": {&rack.MacNodeClass{}, func(o any) field.ErrorList { return rackvalidation.ValidateMacNodeClass(o.(*rack.MacNodeClass)) }},
	"MacNodeLease": {&rack.MacNodeLease{}, func(o any) field.ErrorList { return rackvalidation.ValidateMacNodeLease(o.(*rack.MacNodeLease)) }},
	"MacNodeLease update": {&rack.MacNodeLease{}, func(o any) field.ErrorList {
		return rackvalidation.ValidateMacNodeLeaseUpdate(o.(*rack.MacNodeLease), &rack.MacNodeLease{})
	}},
	"MacNodeLease status": {&rack.MacNodeLease{}, func(o any) field.ErrorList {
		return rackvalidation.ValidateMacNodeLeaseStatusUpdate(o.(*rack.MacNodeLease), &rack.MacNodeLease{})
	}},
	"MacNodeLeaseBinding": {&rack.MacNodeLeaseBinding{}, func(o any) field.ErrorList {
		return rackvalidation.ValidateMacNodeLeaseBinding(o.(*rack.MacNodeLeaseBinding))
	}},
	"MacNodeLeaseRelease": {&rack.MacNodeLeaseRelease{}, func(o any) field.ErrorList {
		return rackvalidation.ValidateMacNodeLeaseRelease(o.(*rack.MacNodeLeaseRelease))
	}},
	"AuditRecord": {&rack.AuditRecord{}, func(o any) field.ErrorList { return rackvalidation.ValidateAuditRecord(o.(*rack.AuditRecord)) }},
	"MacOSInstance": {&instance.MacOSInstance{}, func(o any) field.ErrorList {
		return instancevalidation.ValidateMacOSInstance(o.(*instance.MacOSInstance))
	}},
	"MacOSInstance update": {&instance.MacOSInstance{}, func(o any) field.ErrorList {
		return instancevalidation.ValidateMacOSInstanceUpdate(o.(*instance.MacOSInstance), &instance.MacOSInstance{})
	}},
	"MacOSInstance status": {&instance.MacOSInstance{}, func(o any) field.ErrorList {
		return instancevalidation.ValidateMacOSInstanceStatusUpdate(o.(*instance.MacOSInstance), &instance.MacOSInstance{})
	}},
	"MacOSInstanceStop": {&instance.MacOSInstanceStop{}, func(o any) field.ErrorList {
		return instancevalidation.ValidateMacOSInstanceStop(o.(*instance.MacOSInstanceStop))
	}},
	"InstanceClass": {&instance.InstanceClass{}, func(o any) field.ErrorList {
		return instancevalidation.ValidateInstanceClass(o.(*instance.InstanceClass))
	}},
	"MacOSImage": {&image.MacOSImage{}, func(o any) field.ErrorList { return imagevalidation.ValidateMacOSImage(o.(*image.MacOSImage)) }},
	"MacOSImage status": {&image.MacOSImage{}, func(o any) field.ErrorList {
		return imagevalidation.ValidateMacOSImageStatusUpdate(o.(*image.MacOSImage), &image.MacOSImage{})
	}},
	"RackConfig": {&config.RackConfig{}, func(o any) field.ErrorList { return configvalidation.ValidateRackConfig(o.(*config.RackConfig)) }},
}

// Whatever a request has in one of its fields, validation costs little.
func TestCostOfValidation(t *testing.T) {
	for name, v := range validators {
		worst(reflect.ValueOf(v.obj).Elem(), name, func(at string) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			v.validate(v.obj)
			runtime.ReadMemStats(&after)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxAllocated), at)
		})
	}
}

// worst gives each field of a value one after the other its worst values, and calls try with each.
func worst(v reflect.Value, at string, try func(at string)) {
	switch v.Kind() {
	case reflect.String:
		for i, text := range worstTexts {
			v.SetString(text)
			try(fmt.Sprintf("%s: text %d", at, i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		worst(v.Elem(), at, try)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "ManagedFields" {
				worst(v.Field(i), at+"."+f.Name, try)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 100_000, 100_000))
		try(at + ": many")
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		worst(v.Index(0), at+"[]", try)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range 100_000 {
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint(i)).Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		}
		try(at + ": many")
	}
	v.SetZero()
}
