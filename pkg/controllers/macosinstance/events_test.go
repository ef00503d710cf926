package macosinstance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

func TestDescribe(t *testing.T) {
	const normal, warning = corev1.EventTypeNormal, corev1.EventTypeWarning
	message := func(m string) change { return func(i *instancev1alpha1.MacOSInstance) { i.Status.Message = m } }
	for _, tt := range []struct {
		name          string
		before, after *instancev1alpha1.MacOSInstance
		want          []string
	}{
		{"new", nil, anInstance(), []string{"", "", ""}},
		{"gone", anInstance(), nil, []string{"", "", ""}},
		{"unchanged", anInstance(), anInstance(), []string{"", "", ""}},
		{"a new instance of the same name", anInstance(), anInstance(inPhase("Running"), func(i *instancev1alpha1.MacOSInstance) { i.UID = "new" }), []string{"", "", ""}},
		{"scheduled", anInstance(), anInstance(withPod(ReasonScheduled, ""), inPhase("Scheduled")), []string{normal, "Scheduled", "placeholder pod vm-1-vm bound to Node mac-1"}},
		{"pulling", anInstance(), anInstance(inPhase("Pulling")), []string{"", "", ""}},
		{"running", anInstance(), anInstance(inPhase("Running")), []string{normal, "Started", "virtual machine started on Mac S-1"}},
		{"stopping", anInstance(), anInstance(stopAsked), []string{normal, "Stopping", "stop requested by acme (Asked)"}},
		{"stopping at its deadline", anInstance(), anInstance(stopAsked, withDeadline(60), func(i *instancev1alpha1.MacOSInstance) { i.Status.StopRequest.Reason = "DeadlineExceeded" }), []string{warning, "DeadlineExceeded", "DeadlineExceeded: the virtual machine ran for 60 seconds (spec.activeDeadlineSeconds)"}},
		{"stopped", anInstance(), anInstance(inPhase("Stopped"), message("why")), []string{normal, "Stopped", "why"}},
		{"failed", anInstance(), anInstance(inPhase("Failed"), message("why")), []string{warning, "Failed", "why"}},
		{"refused", anInstance(), anInstance(withPod(ReasonPodRefused, "quota")), []string{warning, "PodRefused", "quota"}},
		{"refused again", anInstance(withPod(ReasonPodRefused, "quota")), anInstance(withPod(ReasonPodRefused, "quota")), []string{"", "", ""}},
		{"unschedulable", anInstance(withPod(ReasonWaitingForScheduler, "")), anInstance(withPod(ReasonUnschedulable, "full")), []string{warning, "Unschedulable", "full"}},
		{"the Node does not exist", anInstance(), anInstance(withPod(ReasonWaitingForNode, "no Node")), []string{normal, "WaitingForNode", "no Node"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eventType, reason, message := describe(tt.before, tt.after)
			assert.Equal(t, tt.want, []string{eventType, reason, message})
		})
	}
}
