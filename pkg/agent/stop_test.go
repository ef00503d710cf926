package agent

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/slots"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

// edit changes an instance directly in the tracker of the fake client, which a hanging reactor
// blocks.
func (r *rack) edit(i *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstance)) {
	r.t.Helper()
	i = i.DeepCopy()
	change(i)
	r.edits++
	i.ResourceVersion = strconv.Itoa(1_000_000 + r.edits)
	require.NoError(r.t, r.macrack.Tracker().Update(instancev1alpha1.SchemeGroupVersion.WithResource("macosinstances"), i, i.Namespace))
}

// An instance that is stopped at its deadline fails, as a Job does.
func TestDeadlineFailsTheInstance(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Spec.ActiveDeadlineSeconds = ptr[int64](60)
	r.create(i, newPod(i))
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Phase = instancev1alpha1.MacOSInstanceStopping
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), By: "controllers", Reason: "DeadlineExceeded", GracePeriodSeconds: 30}
	})
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	assert.Equal(t, "DeadlineExceeded: the virtual machine ran for 60 seconds (spec.activeDeadlineSeconds)", status.Message)
	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodFailed }, func() any { return r.pod("pod-a").Status })
	r.waitFree()
}

// A stop does not wait for a report that is refused or hangs.
func TestStopDoesNotWaitForTheAPI(t *testing.T) {
	stop := func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), Reason: "Asked", GracePeriodSeconds: 30}
	}
	gone := func(r *rack) {
		r.eventually(func() bool { return r.running() == 0 }, func() any { return r.agent.slots.Statuses() })
	}
	for name, refusal := range map[string]error{
		"conflicts":   apierrors.NewConflict(instancev1alpha1.Resource("macosinstances"), "a", errors.New("stale")),
		"unavailable": apierrors.NewServiceUnavailable("down"),
		"forbidden":   apierrors.NewForbidden(instancev1alpha1.Resource("macosinstances"), "a", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			i := r.run("a")
			r.onMacRack.prepend("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.GetVerb() != "watch", nil, refusal
			})
			r.edit(i, stop)
			gone(r)
		})
	}
	t.Run("no answer to an earlier report", func(t *testing.T) {
		r := newRack(t)
		i := r.run("a")
		hangs, answer := make(chan struct{}), make(chan struct{})
		t.Cleanup(func() { close(answer) })
		hang := sync.OnceFunc(func() { close(hangs) })
		r.onMacRack.prepend("patch", "macosinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
			hang()
			<-answer
			return true, nil, apierrors.NewServiceUnavailable("down")
		})
		r.edit(i, func(i *instancev1alpha1.MacOSInstance) { i.Status.Message = "of another writer" })
		<-hangs // the agent reports that there is nothing to say
		r.edit(i, stop)
		gone(r)
	})
}

func TestEndings(t *testing.T) {
	tests := []struct {
		name    string
		act     func(r *rack, i *instancev1alpha1.MacOSInstance)
		phase   instancev1alpha1.MacOSInstancePhase
		message string
	}{
		{name: "pod deleted", phase: instancev1alpha1.MacOSInstanceStopped, message: "the placeholder pod pod-a was deleted", act: func(r *rack, i *instancev1alpha1.MacOSInstance) {
			require.NoError(r.t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, "pod-a", metav1.DeleteOptions{}))
		}},
		{name: "instance deleted", phase: instancev1alpha1.MacOSInstanceStopped, message: "Stopped as requested", act: func(r *rack, i *instancev1alpha1.MacOSInstance) {
			r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
				i.DeletionTimestamp, i.Finalizers = ptr(metav1.Now()), []string{rules.FinalizerVM}
			})
		}},
		{name: "crash", phase: instancev1alpha1.MacOSInstanceFailed, message: "The virtual machine crashed: VZErrorDomain code 1", act: func(r *rack, i *instancev1alpha1.MacOSInstance) {
			r.post(r.slotOf(i), sim.PathCrash)
		}},
		{name: "guest shuts down", phase: instancev1alpha1.MacOSInstanceStopped, message: "The guest shut itself down", act: func(r *rack, i *instancev1alpha1.MacOSInstance) {
			r.post(r.slotOf(i), sim.PathDown)
		}},
		{name: "killed on the Mac", phase: instancev1alpha1.MacOSInstanceFailed, message: "without a request from the cluster", act: func(r *rack, i *instancev1alpha1.MacOSInstance) {
			require.NoError(r.t, r.agent.slots.Kill(r.ctx, string(i.UID)))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRack(t)
			test.act(r, r.run("a"))
			status := r.waitPhase("a", test.phase)
			assert.Contains(t, status.Message, test.message)
			assert.Nil(t, status.IPAddress)
			assert.NotNil(t, status.StoppedAt)
			assert.Equal(t, 0, r.running())
			r.waitFree()
		})
	}
}

// deadLauncher starts no runners.
type deadLauncher struct{ tries atomic.Int32 }

func (l *deadLauncher) Launch(contract.SlotDir) (<-chan error, error) {
	l.tries.Add(1)
	return nil, errors.New("launchctl was killed")
}

// waitPrepared waits until the instance's launch has failed and the next try waits for the clock.
func (r *rack) waitPrepared(i *instancev1alpha1.MacOSInstance, dead *deadLauncher) {
	r.t.Helper()
	r.eventually(func() bool {
		if dead.tries.Load() < 2 {
			return false
		}
		s, ok := r.agent.slots.Find(string(i.UID))
		return ok && s.Phase == slots.Prepared
	}, func() any { return dead.tries.Load() })
}

// A runner that starts although its launcher has failed is found.
func TestStopOfALateRunner(t *testing.T) {
	for name, late := range map[string]bool{"it is there": true, "it has not come": false} {
		t.Run(name, func(t *testing.T) {
			dead := &deadLauncher{}
			r := newRack(t, func(r *rack) { r.clock, r.launch = clocktesting.NewFakeClock(time.Now()), dead })
			i := newInstance("a")
			r.create(i, newPod(i))
			r.waitPrepared(i, dead)
			if late {
				_, err := r.launcher.Launch(r.slot(0))
				require.NoError(t, err)
				r.eventually(func() bool { return r.running() == 1 }, func() any { return nil })
			}
			running := make(chan int, 100)
			r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if rules.InstanceEnded(r.patched(action).Status.Phase) {
					n, _ := r.host.RunningVMs()
					running <- n
				}
				return false, nil, nil
			})
			r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
				i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), Reason: "Asked", GracePeriodSeconds: 30}
			})
			status := r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
			assert.Equal(t, 0, <-running, "stopped means that the VM is gone")
			assert.Equal(t, late, status.StartedAt != nil)
			if late {
				assert.Equal(t, "Asked", status.Message)
			} else {
				assert.Equal(t, "Asked; the virtual machine had not started", status.Message)
			}
			r.waitFree()
		})
	}
}

// The slot is erased before the report, so after an interruption only the API has the instance.
func TestStopBeforeStartIsRetried(t *testing.T) {
	dead := &deadLauncher{}
	r := newRack(t, func(r *rack) { r.clock, r.launch = clocktesting.NewFakeClock(time.Now()), dead })
	i := newInstance("a")
	r.create(i, newPod(i))
	r.waitPrepared(i, dead)
	var down atomic.Bool
	down.Store(true)
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return down.Load() && rules.InstanceEnded(r.patched(action).Status.Phase), nil, apierrors.NewServiceUnavailable("down")
	})
	require.NoError(t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, "pod-a", metav1.DeleteOptions{}))
	r.waitFree()
	r.restart()
	down.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
}

func TestStopBeforeStart(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Status.Phase = instancev1alpha1.MacOSInstanceStopping
	i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now()}
	r.create(i, newPod(i))
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	assert.Nil(t, status.StartedAt)
	assert.Empty(t, status.MachineID)
}

func TestLostVirtualMachineFails(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Status.Phase, i.Status.MachineID, i.Status.MACAddress = instancev1alpha1.MacOSInstanceRunning, "bQ==", "02:00:00:00:00:01"
	i.Status.StartedAt = ptr(metav1.Now())
	r.create(i, newPod(i))
	assert.Contains(t, r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed).Message, "no longer exists on the Mac")
}

// The instance may be deleted before the agent sees its own last write.
func TestInstanceIsDeletedAtOnce(t *testing.T) {
	r := newRack(t)
	r.run("a")
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		i := r.patched(action)
		if i.Status.Phase != instancev1alpha1.MacOSInstanceStopped {
			return false, nil, nil
		}
		return true, i, r.macrack.Tracker().Delete(action.GetResource(), i.Namespace, i.Name)
	})
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), Reason: "Deleted", GracePeriodSeconds: 30}
	})
	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodSucceeded }, func() any { return r.pod("pod-a").Status })
	r.waitFree()
	require.NoError(t, r.agent.pods.Reconcile(r.ctx, types.NamespacedName{Namespace: tenant, Name: "pod-a"}))
	assert.Empty(t, r.records(), "no instance was refused")
}

func TestTerminalPhaseIsFinal(t *testing.T) {
	r := newRack(t)
	r.run("a")
	r.stop()
	failed := func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Phase, i.Status.Message = instancev1alpha1.MacOSInstanceFailed, "for a reason"
	}
	r.changeInstance("a", failed)
	b := newInstance("b")
	failed(b)
	r.create(b, newPod(b))
	r.start()
	r.eventually(func() bool { return r.pod("pod-b").Status.Phase == corev1.PodFailed }, func() any { return r.pod("pod-b").Status })
	r.eventually(func() bool { return r.running() == 0 }, func() any { return nil })
	r.eventually(func() bool {
		entries, err := os.ReadDir(string(r.slot(0)))
		return err == nil && len(entries) == 1 // the lock
	}, func() any { return nil })
	for _, name := range []string{"a", "b"} {
		assert.Equal(t, "for a reason", r.instance(name).Status.Message)
		assert.Equal(t, instancev1alpha1.MacOSInstanceFailed, r.instance(name).Status.Phase)
	}
	assert.Len(t, r.machineIDs, 1)
}

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
				seen, err := r.agent.objects.instances.Cached(i.Namespace, "a")
				return err == nil && seen.Status.StopRequest != nil
			}, func() any { return "the agent sees the change" })
			require.NoError(t, r.agent.stopper.StopIfRequired(r.ctx, slot))
			assert.Never(t, func() bool { return r.running() != 1 }, time.Second, 20*time.Millisecond)
			still, ok := r.agent.slots.Find(string(i.UID))
			require.True(t, ok)
			assert.Equal(t, slots.Attached, still.Phase)
		})
	}
}
