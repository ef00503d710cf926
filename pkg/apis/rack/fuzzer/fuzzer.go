// Package fuzzer fills objects of rack.macrack.io with random values for tests. Fields with a
// default are always set, because they would not survive a round trip otherwise.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the fuzzer functions.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return append([]any{
		func(spec *rack.MacNodeLeaseSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.MinimumDuration = &scalar.Duration{}
			c.Fill(spec.MinimumDuration)
		},
	}, scalarfuzzer.Funcs...)
}
