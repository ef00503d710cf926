// Package fuzzer fills objects of config.macrack.io with random values for tests. Fields with a
// default are always set, because they would not survive a round trip otherwise.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/scalar"
	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the fuzzer functions.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return append([]any{
		func(spec *config.RackConfigSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.ImageCache.MinimumFree = ptr.To(scalarfuzzer.Quantity(c))
			for _, d := range []**scalar.Duration{&spec.Audit.Retention, &spec.Agent.HeartbeatInterval, &spec.Agent.OfflineAfter} {
				*d = &scalar.Duration{}
				c.Fill(*d)
			}
			spec.Quarantine.Reboot = config.RebootWhenEmpty
		},
	}, scalarfuzzer.Funcs...)
}
