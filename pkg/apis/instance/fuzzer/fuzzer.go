// Package fuzzer fills objects of instance.macrack.io with random values for tests. Fields with a
// default are always set, because they would not survive a round trip otherwise.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/instance"
	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the fuzzer functions.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return append([]any{
		func(spec *instance.InstanceClassSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.Display = &instance.Display{Width: c.Int31(), Height: c.Int31(), PixelsPerInch: 1 + c.Int31n(600)}
			spec.Synchronization = instance.DiskSynchronizationNone
			spec.Network.Mode = instance.NetworkNAT
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
