package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clientexec "k8s.io/client-go/util/exec"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

// fakeGuest runs commands as a function.
type fakeGuest struct {
	exec func(ctx context.Context, pod guest.Pod, command []string, streams guest.Streams) error
}

func (g *fakeGuest) Exec(ctx context.Context, pod guest.Pod, command []string, streams guest.Streams) error {
	return g.exec(ctx, pod, command, streams)
}

func (g *fakeGuest) Forward(context.Context, guest.Pod, int) (int, error) {
	return 0, errors.New("not used")
}

const suffix = "x7k2p"

// world is a namespace whose server names objects, binds leases and starts instances.
type world struct {
	*plugintest.Fixture
	guest fakeGuest
	// failInstances makes instances fail; noMacs leaves leases pending.
	// dryRun is the answer to a dry run.
	dryRun                error
	failInstances, noMacs bool
}

func newWorld(objects ...runtime.Object) *world {
	classes := []runtime.Object{
		&instancev1alpha1.InstanceClass{
			ObjectMeta: metav1.ObjectMeta{Name: "small"},
			Spec:       instancev1alpha1.InstanceClassSpec{Resources: instancev1alpha1.InstanceClassResources{CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi")}},
		},
		&rackv1alpha1.MacNodeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "base"},
			Spec: rackv1alpha1.MacNodeClassSpec{
				Model: "Mac mini (2024)", SKU: "MINI-M4", Capacity: rackv1alpha1.MachineResources{CPU: scalar.MustParse("10"), Memory: scalar.MustParse("24Gi")},
			},
		},
	}
	w := &world{Fixture: plugintest.New(append(classes, objects...)...)}
	w.guest.exec = func(_ context.Context, _ guest.Pod, _ []string, s guest.Streams) error {
		_, err := io.WriteString(s.Out, "output\n")
		return err
	}
	w.MacRack.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		obj := create.GetObject()
		if len(create.CreateOptions.DryRun) > 0 {
			return true, obj, w.dryRun
		}
		m, err := meta.Accessor(obj)
		if err != nil {
			return true, nil, err
		}
		m.SetName(m.GetGenerateName() + suffix)
		m.SetUID(types.UID("uid-of-" + m.GetName()))
		switch obj := obj.(type) {
		case *rackv1alpha1.MacNodeLease:
			obj.Status = w.leaseStatus()
		case *instancev1alpha1.MacOSInstance:
			obj.Status = w.instanceStatus()
		}
		return false, nil, nil
	})
	return w
}

func (w *world) leaseStatus() rackv1alpha1.MacNodeLeaseStatus {
	if w.noMacs {
		return rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending, Conditions: []metav1.Condition{
			{Type: rackv1alpha1.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: "NoMacAvailable", Message: "all Macs are leased"},
		}}
	}
	return lease("any", nil).Status
}

func (w *world) instanceStatus() instancev1alpha1.MacOSInstanceStatus {
	if w.failInstances {
		return instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceFailed, Message: "the image does not boot"}
	}
	return instancev1alpha1.MacOSInstanceStatus{
		Phase: instancev1alpha1.MacOSInstanceRunning, PodName: "run-x7k2p-vm",
		Conditions: []metav1.Condition{{Type: instancev1alpha1.MacOSInstanceReady, Status: metav1.ConditionTrue}},
	}
}

func (w *world) command(env *cmdutil.Env) *cobra.Command {
	return newCommand(env, func(*cmdutil.Clients) guest.Access { return &w.guest })
}

func (w *world) try(t *testing.T, args ...string) error {
	t.Helper()
	return w.Try(t, w.command, append(append([]string{"--image", "macos-26", "--class", "small"}, args...), "--", "uname", "-a")...)
}

func (w *world) leases(t *testing.T) []rackv1alpha1.MacNodeLease {
	t.Helper()
	list, err := w.MacRack.RackV1alpha1().MacNodeLeases("acme").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

func (w *world) instances(t *testing.T) []instancev1alpha1.MacOSInstance {
	t.Helper()
	list, err := w.MacRack.InstanceV1alpha1().MacOSInstances("acme").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

// usedLease returns the lease of the created instance.
func (w *world) usedLease() string {
	for _, action := range w.MacRack.Actions() {
		if create, ok := action.(clienttesting.CreateAction); ok {
			if i, ok := create.GetObject().(*instancev1alpha1.MacOSInstance); ok {
				return i.Spec.LeaseName
			}
		}
	}
	return ""
}

func lease(name string, change func(*rackv1alpha1.MacNodeLease)) *rackv1alpha1.MacNodeLease {
	l := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: name, UID: types.UID(name)},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
		Status: rackv1alpha1.MacNodeLeaseStatus{
			Phase: rackv1alpha1.MacNodeLeaseBound, SerialNumber: "S1", BoundAt: plugintest.At(-1), EarliestReleaseAt: plugintest.At(23),
			Conditions: []metav1.Condition{{Type: rackv1alpha1.MacNodeLeaseConditionReady, Status: metav1.ConditionTrue}},
		},
	}
	if change != nil {
		change(l)
	}
	return l
}

func slots(cpu string, names ...string) func(*rackv1alpha1.MacNodeLease) {
	return func(l *rackv1alpha1.MacNodeLease) {
		for _, name := range names {
			l.Status.Instances = append(l.Status.Instances, rackv1alpha1.LeaseSlot{Name: name, Resources: rackv1alpha1.MachineResources{CPU: scalar.MustParse(cpu)}})
		}
	}
}

func held(l *rackv1alpha1.MacNodeLease) {
	l.Status.Phase, l.DeletionTimestamp, l.Finalizers = rackv1alpha1.MacNodeLeaseHeld, plugintest.At(-0.5), []string{"macrack.io/floor"}
}

// An instance ends and is deleted without the plugin, which can be killed.
func TestDeadline(t *testing.T) {
	for flag, want := range map[string]int64{"": 86400, "--deadline=90m": 5400, "--deadline=1s": 1} {
		w := newWorld(lease("build", nil))
		w.guest.exec = func(context.Context, guest.Pod, []string, guest.Streams) error {
			for _, i := range w.instances(t) {
				assert.Equal(t, ptr.To(want), i.Spec.ActiveDeadlineSeconds)
				assert.Equal(t, ptr.To(int32(300)), i.Spec.TTLSecondsAfterFinished)
			}
			assert.Len(t, w.instances(t), 1)
			return nil
		}
		require.NoError(t, w.try(t, strings.Fields(flag)...))
	}
	assert.EqualError(t, newWorld().try(t, "--deadline=0s"), "--deadline is 0s; it must be at least 1s")
}

func TestRun(t *testing.T) {
	w := newWorld(lease("build", nil))
	var command []string
	w.guest.exec = func(_ context.Context, pod guest.Pod, c []string, s guest.Streams) error {
		command = c
		assert.Equal(t, guest.Pod{Namespace: "acme", Name: "run-x7k2p-vm"}, pod)
		assert.Nil(t, s.In, "without -i")
		assert.Len(t, w.instances(t), 1)
		_, err := io.WriteString(s.Out, "Darwin\n")
		return err
	}
	require.NoError(t, w.try(t))
	assert.Equal(t, []string{"uname", "-a"}, command)
	assert.Equal(t, "Darwin\n", w.Out.String(), "progress is not in the output")
	assert.Equal(t, "Using lease build\nInstance run-x7k2p created\nInstance run-x7k2p is ready after 0s\nInstance run-x7k2p deleted\n", w.ErrOut.String())
	assert.Empty(t, w.instances(t))
	assert.Len(t, w.leases(t), 1)
}

func TestExitCode(t *testing.T) {
	w := newWorld(lease("build", nil))
	w.guest.exec = func(context.Context, guest.Pod, []string, guest.Streams) error {
		return clientexec.CodeExitError{Err: errors.New("command terminated with exit code 42"), Code: 42}
	}
	code, message := cmdutil.ExitCode(w.try(t))
	assert.Equal(t, 42, code)
	assert.Empty(t, message, "the command has printed its own errors")
	assert.Empty(t, w.instances(t))
}

func TestStandardInput(t *testing.T) {
	w := newWorld(lease("build", nil))
	w.Input.WriteString("script")
	w.guest.exec = func(_ context.Context, _ guest.Pod, _ []string, s guest.Streams) error {
		_, err := io.Copy(s.Out, s.In)
		return err
	}
	require.NoError(t, w.try(t, "-i"))
	assert.Equal(t, "script", w.Out.String())
	assert.ErrorContains(t, w.try(t, "-it"), "--tty needs --stdin and a terminal")
}

func TestChoiceOfTheLease(t *testing.T) {
	for name, tt := range map[string]struct {
		leases []runtime.Object
		want   string
	}{
		"full, no Mac, not ready": {[]runtime.Object{
			lease("a", slots("1", "one", "two")),
			lease("b", func(l *rackv1alpha1.MacNodeLease) { l.Status = rackv1alpha1.MacNodeLeaseStatus{Phase: "Pending"} }),
			lease("c", func(l *rackv1alpha1.MacNodeLease) { l.Status.Conditions = nil }),
			lease("d", slots("1", "one")),
		}, "d"},
		"too large for the rest": {[]runtime.Object{lease("a", slots("8", "one")), lease("b", slots("6", "one"))}, "b"},
		"latest floor": {[]runtime.Object{lease("a", nil), lease("b", func(l *rackv1alpha1.MacNodeLease) {
			l.Status.EarliestReleaseAt = plugintest.At(50)
		})}, "b"},
		"bound before held": {[]runtime.Object{lease("a", func(l *rackv1alpha1.MacNodeLease) {
			held(l)
			l.Status.EarliestReleaseAt = plugintest.At(50)
		}), lease("b", nil)}, "b"},
		"held before its floor": {[]runtime.Object{lease("a", held)}, "a"},
	} {
		w := newWorld(tt.leases...)
		require.NoError(t, w.try(t), name)
		assert.Equal(t, tt.want, w.usedLease(), name)
	}
}

func TestNamedLease(t *testing.T) {
	w := newWorld(lease("a", nil), lease("b", nil), lease("full", slots("1", "one", "two")), lease("past", func(l *rackv1alpha1.MacNodeLease) {
		held(l)
		l.Status.BoundAt, l.Status.EarliestReleaseAt = plugintest.At(-25), plugintest.At(-1)
	}))
	require.NoError(t, w.try(t, "--lease", "b"))
	assert.Equal(t, "b", w.usedLease())
	assert.ErrorContains(t, w.try(t, "--lease", "full"), "rule 1 (two VMs per Mac)")
	assert.ErrorContains(t, w.try(t, "--lease", "past"), "its floor passed")
	assert.ErrorContains(t, w.try(t, "--lease", "none"), "not found")
}

func TestNewLease(t *testing.T) {
	w := newWorld(lease("full", slots("1", "one", "two")))
	require.NoError(t, w.try(t, "--yes", "--node-class", "base"))
	assert.Equal(t, "run-x7k2p", w.usedLease())
	assert.Contains(t, w.ErrOut.String(), "No lease in namespace acme has a free slot. A new lease takes a Mac of class base (Mac mini (2024)), SKU MINI-M4 for 24 hours and is billed for all of them;\n")
	assert.Contains(t, w.ErrOut.String(), "Lease run-x7k2p keeps its Mac until 2026-12-01T11:00:00Z; use it with --lease run-x7k2p\n")
	leases := w.leases(t)
	require.Len(t, leases, 2)
	assert.Equal(t, 24*time.Hour, leases[1].Spec.ExpireAfter.Value(), "it deletes itself even if this program is killed")
}

// A lease that the server would refuse needs no confirmation.
func TestImpossibleNewLease(t *testing.T) {
	w := newWorld()
	w.dryRun = errors.New("name a MacNodeClass")
	assert.EqualError(t, w.try(t), "no lease has a free slot, and a new one would be refused: name a MacNodeClass")
	assert.Empty(t, w.leases(t))
	assert.Empty(t, w.ErrOut.String())
}

// A new lease needs a confirmation.
func TestNoNewLeaseWithoutAnAnswer(t *testing.T) {
	w := newWorld()
	assert.ErrorContains(t, w.try(t), "confirm the new lease with --yes")
	assert.Empty(t, w.leases(t))
	assert.Contains(t, w.ErrOut.String(), "A new lease takes a Mac of the default class for 24 hours")
}

func TestFailedInstance(t *testing.T) {
	w := newWorld(lease("build", nil))
	w.failInstances = true
	assert.EqualError(t, w.try(t), `instance "run-x7k2p" ended before the command ran: the image does not boot`)
	assert.Empty(t, w.instances(t))
}

func TestRefusedInstance(t *testing.T) {
	w := newWorld(lease("build", nil))
	w.ForbidMacRack("create", "macosinstances", "*")
	assert.True(t, apierrors.IsForbidden(w.try(t)))
}

func TestNoRightToListLeases(t *testing.T) {
	w := newWorld()
	w.ForbidMacRack("list", "macnodeleases", "*")
	assert.ErrorContains(t, w.try(t), "Leases are not shown: you may not list macnodeleases in rack.macrack.io in namespace acme")
}

// interrupt runs the command and cancels it when ready returns true.
func (w *world) interrupt(t *testing.T, ready func() bool, args ...string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := w.command(w.Env)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(append([]string{"--image", "macos-26", "--class", "small"}, args...), "--", "sleep"))
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	require.Eventually(t, ready, 10*time.Second, time.Millisecond)
	cancel()
	return <-done
}

func TestInterruptedCommand(t *testing.T) {
	w := newWorld(lease("build", nil))
	started := make(chan struct{})
	w.guest.exec = func(ctx context.Context, _ guest.Pod, _ []string, _ guest.Streams) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}
	err := w.interrupt(t, func() bool {
		select {
		case <-started:
			return true
		default:
			return false
		}
	})
	code, message := cmdutil.ExitCode(err)
	assert.Equal(t, 130, code)
	assert.Equal(t, "interrupted", message)
	assert.Empty(t, w.instances(t))
}

// A lease without a Mac is deleted, because it has cost nothing.
func TestInterruptedWaitForAMac(t *testing.T) {
	w := newWorld()
	w.noMacs = true
	waits := func() bool { return strings.Contains(w.ErrOut.String(), "Waiting for a Mac: all Macs are leased") }
	err := w.interrupt(t, waits, "--yes")
	assert.ErrorIs(t, err, cmdutil.ErrInterrupted)
	assert.Empty(t, w.leases(t))
	assert.Contains(t, w.ErrOut.String(), "Lease run-x7k2p deleted; it had no Mac\n")
}

func TestFailedCleanup(t *testing.T) {
	w := newWorld(lease("build", nil))
	w.MacRack.PrependReactor("delete", "macosinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("the server is gone")
	})
	assert.EqualError(t, w.try(t), "failed to clean up: the server is gone")
}

func TestArguments(t *testing.T) {
	w := newWorld()
	assert.ErrorContains(t, w.Try(t, w.command, "--image", "i", "--class", "c"), "no command; write it after --")
	assert.ErrorContains(t, w.Try(t, w.command, "--image", "i", "--class", "c", "uname"), "no command; write it after --")
	assert.ErrorContains(t, w.Try(t, w.command, "--", "uname"), `required flag(s) "class", "image" not set`)
}
