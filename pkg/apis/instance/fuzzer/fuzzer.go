// Package fuzzer fills in objects of instance.macrack.io at random, for tests. What has a default is never left out,
// as it would not come back the same.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/instance"
	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the functions that fill in objects.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return append([]any{
		func(spec *instance.InstanceClassSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.Display = &instance.Display{Width: c.Int31(), Height: c.Int31(), PixelsPerInch: 1 + c.Int31n(600)}
		},
		func(resources *instance.InstanceResources, c randfill.Continue) {
			resources.Requests = instance.ResourceList{c.String(0): scalarfuzzer.Quantity(c)}
		},
		func(stop *instance.MacOSInstanceStop, c randfill.Continue) {
			c.FillNoCustom(stop)
			seconds := c.Int63()
			stop.GracePeriodSeconds = &seconds
		},
	}, scalarfuzzer.Funcs...)
}
