package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

const rebootsFile = "reboots.json"

// configureReboot sets the policy of reboots in the RackConfig.
func (r *rack) configureReboot(policy configv1alpha1.RebootPolicy) {
	_, err := r.macrack.ConfigV1alpha1().RackConfigs().Create(r.ctx, &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: configv1alpha1.RackConfigName},
		Spec:       configv1alpha1.RackConfigSpec{Quarantine: configv1alpha1.QuarantineConfig{Reboot: policy}},
	}, metav1.CreateOptions{})
	require.NoError(r.t, err)
}

func (r *rack) quarantine(reason string, since time.Time) {
	bootID, err := r.host.BootID()
	require.NoError(r.t, err)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: reason, Since: metav1.NewTime(since), BootID: bootID}
	})
}

func TestReboot(t *testing.T) {
	r := newRack(t)
	r.configureReboot(configv1alpha1.RebootWhenEmpty)
	since := time.Now().Add(-time.Minute)
	r.quarantine(rackv1alpha1.ReasonKernelQuotaStuck, since)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NotContains(c, []string{"", "boot-1"}, r.macNode().Status.BootID, "the agent reports a new boot")
	}, time.Minute, 20*time.Millisecond)
	data, err := os.ReadFile(filepath.Join(r.dir, rebootsFile))
	require.NoError(t, err)
	var history []struct{ Quarantine metav1.Time }
	require.NoError(t, json.Unmarshal(data, &history))
	require.Len(t, history, 1)
	assert.Equal(t, since.Unix(), history[0].Quarantine.Unix())
}

// An agent that has just reported decides on the current state of its Mac.
func TestNoReboot(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*rack, *rackv1alpha1.MacNode)
		reboot bool
	}{
		{"the kernel has lost track of virtual machines", func(*rack, *rackv1alpha1.MacNode) {}, true},
		{"unknown virtual machines", func(_ *rack, m *rackv1alpha1.MacNode) {
			m.Status.Quarantine.Reason = rackv1alpha1.ReasonScrubAsserted
		}, true},
		{"no quarantine", func(_ *rack, m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil }, false},
		{"rebooted already", func(_ *rack, m *rackv1alpha1.MacNode) { m.Status.Quarantine.BootID = "boot-0" }, false},
		{"another serial number", func(_ *rack, m *rackv1alpha1.MacNode) {
			m.Status.Quarantine.Reason = rackv1alpha1.ReasonSerialMismatch
		}, false},
		{"something of the tenant is left", func(_ *rack, m *rackv1alpha1.MacNode) {
			m.Status.Quarantine.Reason = rackv1alpha1.ReasonScrubFailed
		}, false},
		{"a virtual machine that does not answer", func(_ *rack, m *rackv1alpha1.MacNode) {
			m.Status.Quarantine.Reason = rackv1alpha1.ReasonCannotReattach
		}, false},
		{"a virtual machine runs", func(_ *rack, m *rackv1alpha1.MacNode) { m.Status.RunningVMs = 1 }, false},
		{"an instance waits for its launch", func(r *rack, m *rackv1alpha1.MacNode) {
			m.Status.RunningVMs = 1
			i := newInstance("waits")
			i.Status.StartGrantedAt = ptr(metav1.Now())
			r.create(i, nil)
			r.eventually(func() bool { _, err := r.agent.objects.instances.Cached(tenant, "waits"); return err == nil }, func() any { return nil })
		}, true},
		{"the configuration says never", func(r *rack, _ *rackv1alpha1.MacNode) {
			r.agent.rebooter.SetPolicy(configv1alpha1.QuarantineConfig{Reboot: configv1alpha1.RebootNever})
		}, false},
		{"the configuration says nothing", func(r *rack, _ *rackv1alpha1.MacNode) { r.agent.rebooter.SetPolicy(configv1alpha1.QuarantineConfig{}) }, false},
		{"the history is garbled", func(r *rack, _ *rackv1alpha1.MacNode) {
			require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, rebootsFile), []byte("{"), 0o600))
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRack(t)
			r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
			r.agent.rebooter.SetPolicy(configv1alpha1.QuarantineConfig{Reboot: configv1alpha1.RebootWhenEmpty})
			info, err := r.agent.config.Host.Info()
			require.NoError(t, err)
			macNode := r.macNode()
			macNode.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Since: metav1.Now(), BootID: info.BootID}
			tt.change(r, macNode)
			err = r.agent.rebooter.RebootIfCurable(t.Context(), macNode, info)
			if tt.name == "the history is garbled" {
				require.ErrorContains(t, err, "inspect the Mac, then remove the file")
			} else {
				require.NoError(t, err)
			}
			bootID, err := r.host.BootID()
			require.NoError(t, err)
			assert.Equal(t, tt.reboot, bootID != "boot-1")
		})
	}
}

func TestNoRebootWhileASlotIsTaken(t *testing.T) {
	r := newRack(t)
	r.run("one")
	r.agent.rebooter.SetPolicy(configv1alpha1.QuarantineConfig{Reboot: configv1alpha1.RebootWhenEmpty})
	macNode := r.macNode()
	macNode.Status.RunningVMs = 0 // whatever the registry counts
	macNode.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Since: metav1.Now(), BootID: "boot-1"}
	info, err := r.agent.config.Host.Info()
	require.NoError(t, err)
	require.NoError(t, r.agent.rebooter.RebootIfCurable(t.Context(), macNode, info))
	bootID, err := r.host.BootID()
	require.NoError(t, err)
	assert.Equal(t, "boot-1", bootID)
}
