package agent

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"

	"macrack.io/macrack/pkg/agent/session"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/guesttest"
	"macrack.io/macrack/pkg/vm/sim"
)

// TestMain is also the guest agent: simulated guests run this program.
func TestMain(m *testing.M) { guesttest.Main(m) }

// withGuestAgent gives guests a shell.
func withGuestAgent(r *rack) {
	r.launcher.Backend = &sim.Backend{Host: r.host, Clock: clock.RealClock{}, GuestAgent: guesttest.Command(r.t)}
}

func (r *rack) guestReady(name string) {
	r.t.Helper()
	r.eventually(func() bool {
		return meta.IsStatusConditionTrue(r.instance(name).Status.Conditions, instancev1alpha1.MacOSInstanceGuestReady)
	}, func() any { return r.instance(name).Status })
}

// restartAdopting restarts the agent and waits until the new one has seen the guest.
func (r *rack) restartAdopting(name string) {
	r.t.Helper()
	r.stop()
	r.changeInstance(name, func(i *instancev1alpha1.MacOSInstance) { i.Status.Conditions = nil })
	r.start()
	r.guestReady(name)
}

// streams are the streams of a client.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	tty            bool
	resize         chan api.TermSize
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (s *streams) Stdin() io.Reader { return s.stdin }

func (s *streams) Stdout() io.WriteCloser {
	if s.stdout == nil {
		return nil
	}
	return nopCloser{s.stdout}
}

func (s *streams) Stderr() io.WriteCloser {
	if s.stderr == nil {
		return nil
	}
	return nopCloser{s.stderr}
}

func (s *streams) TTY() bool { return s.tty }

func (s *streams) Resize() <-chan api.TermSize { return s.resize }

func (r *rack) sh(script string) (string, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	err := r.agent.session.Exec(ctx, tenant, "pod-a", "vm", []string{"sh", "-c", script}, &streams{stdout: &out})
	return out.String(), err
}

func TestExec(t *testing.T) {
	r := newRack(t, withGuestAgent)
	r.run("a")
	r.guestReady("a")
	var out, errs bytes.Buffer
	err := r.agent.session.Exec(r.ctx, tenant, "pod-a", "vm", []string{"sh", "-c", "cat; echo oops >&2; exit 7"},
		&streams{stdin: strings.NewReader("in"), stdout: &out, stderr: &errs})
	var exit utilexec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.True(t, exit.Exited())
	assert.Equal(t, 7, exit.ExitStatus())
	assert.Equal(t, "in", out.String())
	assert.Equal(t, "oops\n", errs.String())

	resize := make(chan api.TermSize, 1)
	resize <- api.TermSize{Width: 99, Height: 11}
	out.Reset()
	require.NoError(t, r.agent.session.Exec(r.ctx, tenant, "pod-a", "vm", []string{"sh", "-c", "read line; stty size"},
		&streams{stdin: strings.NewReader("\n"), stdout: &out, tty: true, resize: resize}))
	assert.Contains(t, out.String(), "11 99")

	// A restarted agent reaches the guest again.
	r.restartAdopting("a")
	text, err := r.sh("echo again")
	require.NoError(t, err)
	assert.Equal(t, "again\n", text)
}

// An image of tart works unchanged.
func TestTartAgent(t *testing.T) {
	r := newRack(t, withGuestAgent)
	require.NoError(t, r.host.SetGuest(contract.Simulation{TartAgent: true}))
	i := newInstance("a")
	i.Spec.StartupScript = "echo ran | tee -a ran; exit 3"
	i.Spec.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA one"}
	r.create(i, newPod(i))
	r.eventually(func() bool { return r.instance("a").Status.Startup != nil }, func() any { return r.instance("a").Status })
	assert.EqualValues(t, 3, r.instance("a").Status.Startup.ExitCode)
	assert.Equal(t, "ran\n", r.instance("a").Status.Startup.Output)
	r.guestReady("a")
	assert.Equal(t, "192.168.64.2", r.instance("a").Status.IPAddress.Value)

	text, err := r.sh("cat ran .ssh/authorized_keys; exit 7")
	var exit utilexec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 7, exit.ExitStatus())
	assert.Equal(t, "ran\nssh-ed25519 AAAA one\n", text)
	r.restartAdopting("a")
	text, err = r.sh("cat ran")
	require.NoError(t, err)
	assert.Equal(t, "ran\n", text)
}

func TestStartupScriptRunsOnce(t *testing.T) {
	r := newRack(t, withGuestAgent)
	i := newInstance("a")
	i.Spec.StartupScript = "echo ran | tee -a ran; exit 3"
	i.Spec.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA one"}
	r.create(i, newPod(i))
	r.eventually(func() bool { return r.instance("a").Status.Startup != nil }, func() any { return r.instance("a").Status })
	first := r.instance("a").Status.Startup
	assert.EqualValues(t, 3, first.ExitCode)
	assert.Equal(t, "ran\n", first.Output)
	assert.NotNil(t, first.FinishedAt)

	r.restartAdopting("a")
	r.post(0, sim.PathReboot)
	r.post(0, sim.PathGuestKill)
	var text string
	r.eventually(func() bool {
		var err error
		text, err = r.sh("cat ran .ssh/authorized_keys")
		return err == nil
	}, func() any { return r.instance("a").Status })
	assert.Equal(t, "ran\nssh-ed25519 AAAA one\n", text)
	assert.Equal(t, first, r.instance("a").Status.Startup)
}

// A tenant can write a pod's annotations, but they do not open another tenant's machine.
func TestForeignPodOpensNothing(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	forged := func(namespace, name, uid string) {
		_, err := r.kube.CoreV1().Pods(namespace).Create(r.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "forged",
				Labels: map[string]string{rules.LabelInstance: name}, Annotations: map[string]string{rules.AnnotationInstanceUID: uid},
			},
			Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "vm"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	forged("globex", "a", string(i.UID))
	forged(tenant, "a", string(i.UID))
	own := newInstance("own")
	own.Namespace = "globex"
	_, err := r.macrack.InstanceV1alpha1().MacOSInstances("globex").Create(r.ctx, own, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually(func() bool {
		_, mine := r.agent.node.Pods().Pods(tenant).Get("forged")
		_, other := r.agent.node.Pods().Pods("globex").Get("forged")
		_, instance := r.agent.objects.instances.Cached("globex", "own")
		return mine == nil && other == nil && instance == nil
	}, func() any { return "the agent has not seen the pods" })
	for _, namespace := range []string{tenant, "globex"} {
		_, err := r.agent.session.Logs(r.ctx, namespace, "forged", "vm", api.ContainerLogOpts{})
		require.ErrorContains(t, err, "pod forged is not the placeholder of a MacOSInstance")
		err = r.agent.session.Exec(r.ctx, namespace, "forged", "vm", []string{"true"}, &streams{})
		require.ErrorContains(t, err, "pod forged is not the placeholder of a MacOSInstance")
		err = r.agent.session.PortForward(r.ctx, namespace, "forged", 22, struct {
			io.Reader
			io.Writer
			io.Closer
		}{})
		require.ErrorContains(t, err, "pod forged is not the placeholder of a MacOSInstance")
	}
}

func TestSessionsEndWithTheMachine(t *testing.T) {
	r := newRack(t, withGuestAgent)
	r.run("a")
	r.guestReady("a")
	stdout, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := r.agent.session.Exec(r.ctx, tenant, "pod-a", "vm", []string{"sh", "-c", "echo; exec sleep 600"}, &streams{stdout: write})
		_ = write.CloseWithError(err)
		ended <- err
	}()
	_, err := stdout.Read(make([]byte, 1))
	require.NoError(t, err)
	log, err := r.agent.session.Logs(r.ctx, tenant, "pod-a", "vm", api.ContainerLogOpts{Follow: true})
	require.NoError(t, err)
	defer log.Close()
	require.NoError(t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, "pod-a", metav1.DeleteOptions{}))
	select {
	case err := <-ended:
		require.ErrorIs(t, err, session.ErrVMStopped)
	case <-time.After(30 * time.Second):
		require.FailNow(t, "the command outlived its machine")
	}
	text, err := io.ReadAll(log)
	require.NoError(t, err)
	assert.Contains(t, string(text), "requesting shutdown of the guest")
	r.waitFree()
	require.ErrorContains(t, r.agent.session.Exec(r.ctx, tenant, "pod-a", "vm", []string{"true"}, &streams{}), "pod-a")
}

func TestGuestWithoutCommands(t *testing.T) {
	r := newRack(t)
	r.run("a")
	_, err := r.sh("true")
	require.ErrorContains(t, err, "this guest runs no commands")
	r.post(0, sim.PathGuestFreeze)
	ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.agent.session.Exec(ctx, tenant, "pod-a", "vm", []string{"true"}, &streams{}), guest.ErrSilent)
}

func TestConsole(t *testing.T) {
	r := newRack(t)
	r.run("a")
	read := func(options api.ContainerLogOpts) string {
		log, err := r.agent.session.Logs(r.ctx, tenant, "pod-a", "vm", options)
		require.NoError(t, err)
		defer log.Close()
		text, err := io.ReadAll(log)
		require.NoError(t, err)
		return string(text)
	}
	all := read(api.ContainerLogOpts{})
	lines := strings.SplitAfter(all, "\n")
	assert.Equal(t, "a boots with 4 CPUs", lines[0][:19])
	assert.Equal(t, lines[1], read(api.ContainerLogOpts{Tail: 1}))
	assert.Equal(t, all[:5], read(api.ContainerLogOpts{LimitBytes: 5}))
	assert.Equal(t, all, read(api.ContainerLogOpts{SinceSeconds: 3600}))
	assert.Empty(t, read(api.ContainerLogOpts{SinceTime: r.clock.Now().Add(time.Second)}))
	stamped := strings.SplitAfter(read(api.ContainerLogOpts{Timestamps: true}), "\n")
	at, text := contract.CutConsoleTime([]byte(stamped[1]))
	assert.Equal(t, lines[1], string(text))
	assert.WithinDuration(t, r.clock.Now(), at, time.Minute)
	assert.Equal(t, lines[1], read(api.ContainerLogOpts{SinceTime: at}), "the second line and what comes after")
	_, err := r.agent.session.Logs(r.ctx, tenant, "pod-a", "vm", api.ContainerLogOpts{Previous: true})
	require.ErrorContains(t, err, "no previous console")

	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	log, err := r.agent.session.Logs(ctx, tenant, "pod-a", "vm", api.ContainerLogOpts{Follow: true, Tail: 1})
	require.NoError(t, err)
	defer log.Close()
	buffer := make([]byte, 4096)
	n, err := log.Read(buffer)
	require.NoError(t, err)
	assert.Equal(t, lines[1], string(buffer[:n]))
	require.NoError(t, r.agent.slots.Stop(r.ctx, "uid-a", time.Minute))
	n, err = log.Read(buffer)
	require.NoError(t, err)
	assert.Equal(t, "requesting shutdown of the guest\n", string(buffer[:n]))
}
