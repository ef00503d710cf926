// Package fuzzer fills in objects of instance.macrack.io at random, for tests. What has a default is never left out,
// as it would not come back the same.
package fuzzer

import (
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/instance"
)

// Funcs returns the functions that fill in objects.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return []any{
		func(spec *instance.InstanceClassSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.Display = &instance.Display{Width: c.Int31(), Height: c.Int31(), PixelsPerInch: 1 + c.Int31n(600)}
		},
		func(resources *instance.InstanceResources, c randfill.Continue) {
			resources.Requests = instance.ResourceList{c.String(0): *resource.NewQuantity(c.Int63n(1000), resource.DecimalSI)}
		},
		func(stop *instance.MacOSInstanceStop, c randfill.Continue) {
			c.FillNoCustom(stop)
			seconds := c.Int63()
			stop.GracePeriodSeconds = &seconds
		},
	}
}
