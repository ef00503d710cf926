package check

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/config"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/apis/image"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/instance"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func TestUnchanged(t *testing.T) {
	type inner struct {
		SSHKeys []string
		CPU     scalar.Quantity
	}
	type spec struct {
		LeaseName string
		Inner     *inner
		Expire    *scalar.Duration
		Requests  map[string]scalar.Quantity
	}
	sample := func() spec {
		return spec{
			LeaseName: "build",
			Inner:     &inner{SSHKeys: []string{"a", "b"}, CPU: scalar.MustParse("8Gi")},
			Expire:    scalar.NewDuration(24 * time.Hour),
			Requests:  map[string]scalar.Quantity{"vm": {Text: "1", Number: true}},
		}
	}
	tests := map[string]struct {
		change func(*spec)
		want   []string
	}{
		"nothing":                  {func(*spec) {}, nil},
		"text":                     {func(s *spec) { s.LeaseName = "b" }, []string{"spec.leaseName: Forbidden: field is immutable; make another"}},
		"several":                  {func(s *spec) { s.LeaseName, s.Inner.CPU = "b", scalar.MustParse("9Gi") }, []string{"spec.leaseName:", "spec.inner.cpu:"}},
		"one in a list":            {func(s *spec) { s.Inner.SSHKeys[1] = "c" }, []string{"spec.inner.sshKeys[1]:"}},
		"length of a list":         {func(s *spec) { s.Inner.SSHKeys = s.Inner.SSHKeys[:1] }, []string{"spec.inner.sshKeys: Forbidden"}},
		"structure gone":           {func(s *spec) { s.Inner = nil }, []string{"spec.inner: Forbidden"}},
		"map":                      {func(s *spec) { s.Requests["vm"] = scalar.MustParse("2") }, []string{"spec.requests[vm]: Forbidden"}},
		"key of a map":             {func(s *spec) { s.Requests = map[string]scalar.Quantity{"cpu": scalar.MustParse("1")} }, []string{"spec.requests[cpu]: Forbidden", "spec.requests[vm]: Forbidden"}},
		"duration":                 {func(s *spec) { s.Expire.Text = "25h" }, []string{"spec.expire: Forbidden"}},
		"duration in words":        {func(s *spec) { s.Expire.Text = "a day" }, []string{"spec.expire: Forbidden"}},
		"duration in another form": {func(s *spec) { s.Expire.Text = "1d" }, nil},
		"amount in another form":   {func(s *spec) { s.Inner.CPU = scalar.MustParse("8192Mi") }, nil},
		"number as a string":       {func(s *spec) { s.Requests["vm"] = scalar.MustParse("1") }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			new := sample()
			tt.change(&new)
			checktest.Errors(t, tt.want, Unchanged(new, sample(), "make another", field.NewPath("spec")))
		})
	}
}

// TestJSONName checks that an error names each field of a spec as the versioned type does.
func TestJSONName(t *testing.T) {
	for _, types := range [][2]reflect.Type{
		{reflect.TypeFor[rack.MacNodeLeaseSpec](), reflect.TypeFor[rackv1alpha1.MacNodeLeaseSpec]()},
		{reflect.TypeFor[rack.MacNodeSpec](), reflect.TypeFor[rackv1alpha1.MacNodeSpec]()},
		{reflect.TypeFor[rack.MacNodeStatus](), reflect.TypeFor[rackv1alpha1.MacNodeStatus]()},
		{reflect.TypeFor[rack.MacNodeClassSpec](), reflect.TypeFor[rackv1alpha1.MacNodeClassSpec]()},
		{reflect.TypeFor[instance.InstanceClassSpec](), reflect.TypeFor[instancev1alpha1.InstanceClassSpec]()},
		{reflect.TypeFor[instance.MacOSInstanceSpec](), reflect.TypeFor[instancev1alpha1.MacOSInstanceSpec]()},
		{reflect.TypeFor[image.MacOSImageSpec](), reflect.TypeFor[imagev1alpha1.MacOSImageSpec]()},
		{reflect.TypeFor[config.RackConfigSpec](), reflect.TypeFor[configv1alpha1.RackConfigSpec]()},
	} {
		sameNames(t, types[0], types[1])
	}
}

func sameNames(t *testing.T, internal, versioned reflect.Type) {
	if internal.Kind() == reflect.Pointer || internal.Kind() == reflect.Slice {
		internal, versioned = internal.Elem(), versioned.Elem()
	}
	if internal.Kind() != reflect.Struct || internal == versioned {
		return
	}
	for i := range internal.NumField() {
		field := internal.Field(i)
		other, found := versioned.FieldByName(field.Name)
		if assert.True(t, found, "%s.%s", versioned, field.Name) {
			name, _, _ := strings.Cut(other.Tag.Get("json"), ",")
			assert.Equal(t, name, jsonName(field.Name), "%s.%s", internal, field.Name)
			sameNames(t, field.Type, other.Type)
		}
	}
}
