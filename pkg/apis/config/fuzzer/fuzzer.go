// Package fuzzer fills in objects of config.macrack.io at random, for tests. What has a default is never left out,
// as it would not come back the same.
package fuzzer

import (
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/scalar"
	scalarfuzzer "macrack.io/macrack/pkg/apis/scalar/fuzzer"
)

// Funcs returns the functions that fill in objects.
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
