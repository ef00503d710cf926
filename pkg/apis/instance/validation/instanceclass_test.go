package validation

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/scalar"
)

func validClass() *instance.InstanceClass {
	return &instance.InstanceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "small", ResourceVersion: "1"},
		Spec: instance.InstanceClassSpec{
			Resources:       instance.InstanceClassResources{CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi"), Storage: scalar.MustParse("64Gi")},
			Display:         &instance.Display{Width: 1920, Height: 1200, PixelsPerInch: 144},
			Synchronization: instance.DiskSynchronizationFsync,
			Network:         instance.Network{Mode: instance.NetworkIsolated},
		},
	}
}

func TestValidateInstanceClass(t *testing.T) {
	tests := map[string]struct {
		change func(*instance.InstanceClassSpec)
		want   []string
	}{
		"valid":                   {func(*instance.InstanceClassSpec) {}, nil},
		"image's disk":            {func(s *instance.InstanceClassSpec) { s.Resources.Storage = scalar.Quantity{} }, nil},
		"no synchronization":      {func(s *instance.InstanceClassSpec) { s.Synchronization = instance.DiskSynchronizationNone }, nil},
		"unknown synchronization": {func(s *instance.InstanceClassSpec) { s.Synchronization = "Full" }, []string{"spec.synchronization: Unsupported value: \"Full\": supported values: \"Fsync\", \"None\""}},
		"no display":              {func(s *instance.InstanceClassSpec) { s.Display = nil }, nil},
		"no cores":                {func(s *instance.InstanceClassSpec) { s.Resources.CPU = scalar.Quantity{} }, []string{"spec.resources.cpu: Required value: must be 1 to 1024"}},
		"half a core":             {func(s *instance.InstanceClassSpec) { s.Resources.CPU = scalar.MustParse("2500m") }, []string{"spec.resources.cpu: Invalid value: \"2500m\": must be a whole number"}},
		"no memory":               {func(s *instance.InstanceClassSpec) { s.Resources.Memory = scalar.Quantity{} }, []string{"spec.resources.memory: Required value: must be 1Mi to 16Ti"}},
		"memory in words":         {func(s *instance.InstanceClassSpec) { s.Resources.Memory = scalar.Quantity{Text: "8 gigabytes"} }, []string{"spec.resources.memory: Invalid value: \"8 gigabytes\": must be an amount such as 4, 8Gi or 512G; accepted suffixes: Ki"}},
		"cores as a number":       {func(s *instance.InstanceClassSpec) { s.Resources.CPU = scalar.Quantity{Text: "4", Number: true} }, nil},
		"no text":                 {func(s *instance.InstanceClassSpec) { s.Resources.CPU = scalar.Quantity{Text: `""`} }, []string{"spec.resources.cpu: Invalid"}},
		"uneven memory":           {func(s *instance.InstanceClassSpec) { s.Resources.Memory = scalar.MustParse("8G") }, []string{"spec.resources.memory: Invalid value: \"8G\": must be whole MiB"}},
		"negative storage":        {func(s *instance.InstanceClassSpec) { s.Resources.Storage = scalar.MustParse("-1") }, []string{"spec.resources.storage: Invalid"}},
		"no width":                {func(s *instance.InstanceClassSpec) { s.Display.Width = 0 }, []string{"spec.display.width: Invalid"}},
		"16K":                     {func(s *instance.InstanceClassSpec) { s.Display.Height = 8640 }, []string{"spec.display.height: Invalid value: 8640: must be 240 to 4320"}},
		"density":                 {func(s *instance.InstanceClassSpec) { s.Display.PixelsPerInch = 1000 }, []string{"spec.display.pixelsPerInch: Invalid"}},
		"NAT":                     {func(s *instance.InstanceClassSpec) { s.Network.Mode = instance.NetworkNAT }, nil},
		"bridged":                 {func(s *instance.InstanceClassSpec) { s.Network.Mode = "Bridged" }, []string{`spec.network.mode: Unsupported value: "Bridged": supported values: "Isolated", "NAT"`}},
		"nothing allowed":         {func(s *instance.InstanceClassSpec) { s.Network.Limits = &instance.NetworkLimits{} }, nil},
		"limits of NAT": {func(s *instance.InstanceClassSpec) {
			s.Network = instance.Network{Mode: instance.NetworkNAT, Limits: &instance.NetworkLimits{}}
		}, []string{"spec.network.limits: Forbidden: NAT has no limits; omit them, or use mode Isolated"}},
		"allowed": {func(s *instance.InstanceClassSpec) {
			s.Network.Limits = &instance.NetworkLimits{AllowedCIDRs: []string{"10.1.0.0/16"}, AllowedNames: []string{"*.example.com"}}
		}, nil},
		"allowed nonsense": {func(s *instance.InstanceClassSpec) {
			s.Network.Limits = &instance.NetworkLimits{AllowedCIDRs: []string{"10.1.0.0"}, AllowedNames: []string{"*"}}
		}, []string{"spec.network.limits.allowedCIDRs[0]: Invalid", "spec.network.limits.allowedNames[0]: Invalid"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			class := validClass()
			tt.change(&class.Spec)
			checktest.Errors(t, tt.want, ValidateInstanceClass(class))
		})
	}
}

func TestValidateInstanceClassUpdate(t *testing.T) {
	class := validClass()
	class.Labels = map[string]string{"a": "b"}
	class.Spec.Resources.Memory = scalar.MustParse("8192Mi")
	checktest.Errors(t, nil, ValidateInstanceClassUpdate(class, validClass()))
	class.Spec.Resources.Memory = scalar.MustParse("16Gi")
	checktest.Errors(t, []string{"spec.resources.memory: Forbidden: field is immutable; a new size is a new InstanceClass"}, ValidateInstanceClassUpdate(class, validClass()))
}
