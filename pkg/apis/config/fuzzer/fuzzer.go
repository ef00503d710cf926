// Package fuzzer fills in objects of config.macrack.io at random, for tests. What has a default is never left out,
// as it would not come back the same.
package fuzzer

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"macrack.io/macrack/pkg/apis/config"
)

// Funcs returns the functions that fill in objects.
var Funcs = func(runtimeserializer.CodecFactory) []any {
	return []any{
		func(spec *config.RackConfigSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.Audit.Retention = duration(c)
			spec.ImageCache.MinimumFree = resource.NewQuantity(c.Int63n(1000), resource.DecimalSI)
			spec.Agent.HeartbeatInterval = duration(c)
			spec.Agent.OfflineAfter = duration(c)
			spec.Quarantine.Reboot = config.RebootWhenEmpty
		},
	}
}

func duration(c randfill.Continue) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(c.Int63())}
}
