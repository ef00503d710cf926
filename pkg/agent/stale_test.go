package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"macrack.io/macrack/pkg/agent/images"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/images/verify"
)

// A cache that has lost the end of an instance starts no VM: the registry decides.
func TestStartIsNotGrantedTwice(t *testing.T) {
	r := newRack(t)
	granted := r.run("a")
	granted.Status.Phase = instancev1alpha1.MacOSInstanceStarting
	image := images.Cached{Digest: granted.Status.ImageDigest}
	again, err := r.agent.claimStart(t.Context(), granted, image)
	require.NoError(t, err)
	assert.Equal(t, granted.Status.MachineID, again.Status.MachineID)
	r.edit(granted, func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = instancev1alpha1.MacOSInstanceFailed })
	_, err = r.agent.claimStart(t.Context(), granted, image)
	assert.ErrorContains(t, err, "has ended")
}

// A stop that arrives before the pull is registered still cancels the pull.
func TestStopJustBeforeAPull(t *testing.T) {
	for name, test := range map[string]struct {
		stop func(r *rack)
		is   func(error) bool
	}{
		"stop": {func(r *rack) {
			r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.StopRequest = &instancev1alpha1.StopRequest{} })
		}, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"instance gone": {func(r *rack) { r.loseInstance("a") }, apierrors.IsNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := slowRack(t, nil)
			i := newInstance("a")
			r.create(i, nil)
			r.waitCondition(rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "EnoughFree")
			r.eventually(func() bool { return !r.agent.mayNotStart(i) }, func() any { return nil })
			test.stop(r)
			r.eventually(func() bool { return r.agent.mayNotStart(i) }, func() any { return nil })
			image, err := r.macrack.ImageV1alpha1().MacOSImages().Get(t.Context(), i.Spec.ImageName, metav1.GetOptions{})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, _, err = r.agent.pull(ctx, i, image)
			assert.True(t, test.is(err), "%v", err)
		})
	}
}

// The pod of an unknown virtual machine remains while the virtual machine runs.
func TestPodOfUnknownVirtualMachine(t *testing.T) {
	r := newRack(t)
	r.run("a")
	r.loseInstance("a")
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
	var deleted atomic.Bool
	r.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		deleted.Store(true)
		return false, nil, nil
	})
	pod := r.pod("pod-a").DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr(metav1.Now()), ptr(int64(30))
	require.NoError(t, r.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, tenant))
	r.eventually(func() bool {
		cached, err := r.agent.node.Pods().Pods(tenant).Get("pod-a")
		return err == nil && cached.DeletionTimestamp != nil
	}, func() any { return r.pod("pod-a") })
	require.NoError(t, r.agent.settlePod(t.Context(), types.NamespacedName{Namespace: tenant, Name: "pod-a"}))
	assert.False(t, deleted.Load())
	assert.Equal(t, 1, r.running())
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonUnknownInstance, Since: metav1.Now(), EndInstances: []string{"uid-a"}}
	})
	r.eventually(deleted.Load, func() any { return r.pod("pod-a") })
	assert.Equal(t, 0, r.running())
}

// A write of the agent that the cache does not have yet does not end a quarantine.
func TestQuarantineEndsByTheCacheAlone(t *testing.T) {
	r := newRack(t)
	r.waitCondition(rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "EnoughFree")
	require.NoError(t, r.agent.state.change(func(m *memory) {
		m.Unhealthy = &unhealthy{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: "stuck", BootID: "boot-1"}
	}))
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Since: metav1.Now()}
	})
	r.eventually(func() bool { return r.agent.state.get().Unhealthy.Quarantined }, func() any { return r.agent.state.get() })
	ahead := r.macNode()
	ahead.ResourceVersion, ahead.Status.Quarantine = "1000000", nil
	r.agent.wroteNode.Mutation(ahead)
	require.NoError(t, r.agent.reconcileMacNode(t.Context()))
	assert.NotNil(t, r.agent.state.get().Unhealthy)
}

func TestImageChecksThatDoNotFit(t *testing.T) {
	c := &imageChecks{}
	for n := range maxImageChecks {
		c.add(rackv1alpha1.ImageCheck{Name: fmt.Sprintf("a-%02d", n), Reason: "Unreachable"}, metav1.Now().Time)
	}
	c.add(rackv1alpha1.ImageCheck{Name: "z", Reason: verify.Reason(nil)}, metav1.Now().Time)
	list := c.list()
	assert.Len(t, list, maxImageChecks)
	assert.Equal(t, "z", list[maxImageChecks-1].Name, "it becomes Ready by this")
}
