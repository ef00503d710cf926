package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func TestBlocksRelease(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*ReleaseFacts)
		reason string
	}{
		"nothing":                 {func(*ReleaseFacts) {}, ""},
		"the lease is Held":       {func(f *ReleaseFacts) { f.Releasing = false }, ReasonNotReleasing},
		"an instance":             {func(f *ReleaseFacts) { f.Instances = []string{"vm"} }, ReasonStoppingInstances},
		"a VM runs":               {func(f *ReleaseFacts) { f.Scrub.RunningVMs = 1 }, ReasonScrubbing},
		"no scrub was asked for":  {func(f *ReleaseFacts) { f.Scrub.Releasing = false }, ReasonScrubbing},
		"no report":               {func(f *ReleaseFacts) { f.Scrub.ReportedLease = "" }, ReasonScrubbing},
		"a report of an earlier":  {func(f *ReleaseFacts) { f.Scrub.ReportedLease = "uid-0" }, ReasonScrubbing},
		"neither has a UID":       {func(f *ReleaseFacts) { f.Scrub.ReportedLease, f.Scrub.LeaseUID = "", "" }, ReasonScrubbing},
		"the condition is not so": {func(f *ReleaseFacts) { f.Scrub.Scrubbed = false }, ReasonScrubbing},
		"files remain":            {func(f *ReleaseFacts) { f.Scrub.Remaining = []string{"disk.img"} }, ReasonScrubbing},
		"no taint":                {func(f *ReleaseFacts) { f.Taints = nil }, ReasonTaintingNode},
		"the tenant's taint":      {func(f *ReleaseFacts) { f.Taints = append(f.Taints, TenantTaint("acme")) }, ReasonTaintingNode},
		"another taint":           {func(f *ReleaseFacts) { f.Taints = append(f.Taints, corev1.Taint{Key: "far", Effect: "NoExecute"}) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			facts := ReleaseFacts{
				Releasing: true, Phase: "Releasing", SerialNumber: "C07", Node: "mac-1", Taints: []corev1.Taint{UnleasedTaint()},
				Scrub: ScrubFacts{Releasing: true, LeaseUID: "uid-1", ReportedLease: "uid-1", Scrubbed: true},
			}
			test.change(&facts)
			reason, message := BlocksRelease(facts)
			assert.Equal(t, test.reason, reason)
			assert.Equal(t, reason == "", message == "")
		})
	}
}

func TestTaints(t *testing.T) {
	soft := UnleasedTaint()
	soft.Effect = corev1.TaintEffectPreferNoSchedule
	other := corev1.Taint{Key: "far", Value: "a", Effect: corev1.TaintEffectNoExecute}
	all := []corev1.Taint{UnleasedTaint(), other, TenantTaint("acme")}
	assert.Equal(t, []string{"far=a:NoExecute", "macrack.io/tenant=acme:NoSchedule", "macrack.io/unleased:NoSchedule"}, FormatTaints(all))
	assert.ElementsMatch(t, all, ParseTaints(FormatTaints(all)))
	assert.Equal(t, []corev1.Taint{UnleasedTaint()}, ParseTaints([]string{"macrack.io/unleased=:NoSchedule"}))
	assert.True(t, HasOnlyTaint([]corev1.Taint{other, UnleasedTaint()}, UnleasedTaint()))
	for name, taints := range map[string][]corev1.Taint{"none": nil, "two": all, "soft": {soft}, "soft too": {soft, UnleasedTaint()}, "another": {TenantTaint("acme")}} {
		assert.False(t, HasOnlyTaint(taints, UnleasedTaint()), name)
	}
	assert.False(t, HasOnlyTaint([]corev1.Taint{TenantTaint("globex")}, TenantTaint("acme")))
}
