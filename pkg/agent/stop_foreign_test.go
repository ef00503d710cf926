package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// A stop of a later instance of the same name, or of the instance on another Mac, does not apply to
// the virtual machine: it is unknown, and continues to run.
func TestStopOfAnotherInstanceStopsNothing(t *testing.T) {
	for name, change := range map[string]func(*instancev1alpha1.MacOSInstance){
		"a later instance of the name": func(i *instancev1alpha1.MacOSInstance) { i.UID = "uid-later" },
		"the instance on another Mac":  func(i *instancev1alpha1.MacOSInstance) { i.Status.NodeName = "mac-other" },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			i := r.run("a")
			slot, ok := r.agent.slots.Find(string(i.UID))
			require.True(t, ok)
			r.edit(i, func(i *instancev1alpha1.MacOSInstance) {
				change(i)
				i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), Reason: "Asked"}
			})
			r.eventually(func() bool {
				seen, err := r.agent.instances.MacOSInstances(i.Namespace).Get("a")
				return err == nil && seen.Status.StopRequest != nil
			}, func() any { return "the agent sees the change" })
			require.NoError(t, r.agent.stopSlot(r.ctx, slot))
			assert.Never(t, func() bool { return r.running() != 1 }, time.Second, 20*time.Millisecond)
			still, ok := r.agent.slots.Find(string(i.UID))
			require.True(t, ok)
			assert.Equal(t, slots.Attached, still.Phase)
		})
	}
}
