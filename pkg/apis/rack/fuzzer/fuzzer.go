// Package fuzzer fills in objects of rack.macrack.io at random, for tests. What has a default is never left out,
// as it would not come back the same.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the functions that fill in objects.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return append([]any{
		func(spec *rack.MacNodeLeaseSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.MinimumDuration = &scalar.Duration{}
			c.Fill(spec.MinimumDuration)
		},
	}, scalarfuzzer.Funcs...)
}
