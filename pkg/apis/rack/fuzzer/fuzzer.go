// Package fuzzer fills in objects of rack.macrack.io at random, for tests. What has a default is never left out,
// as it would not come back the same.
package fuzzer

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/rack"
)

// Funcs returns the functions that fill in objects.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return []any{
		func(spec *rack.MacNodeLeaseSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.MinimumDuration = &metav1.Duration{Duration: time.Duration(c.Int63())}
		},
	}
}
