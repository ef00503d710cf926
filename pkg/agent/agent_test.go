package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	macrackfake "macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
	"macrack.io/macrack/test/fakes"
)

const (
	nodeName = "mac-1"
	tenant   = "acme"
	serial   = "C02TEST"
)

// rack is a Mac with an agent and its APIs.
type rack struct {
	onKube, onMacRack reactions
	judge             fakes.Judge // of what is written to the API; grant unless set

	t        *testing.T
	ctx      context.Context
	kube     *kubefake.Clientset
	macrack  *macrackfake.Clientset
	host     sim.HostDir
	dir      string
	clock    clock.WithTicker
	launcher *slots.InProcess
	launch   slots.Launcher // in launcher's place
	images   images.Store
	agent    *Agent
	stop     func()
	// machineIDs are the assigned machine IDs, newest last.
	mu         sync.Mutex
	machineIDs []string
	edits      int
}

// reactions are the reactors of a fake client in use, to which reactors cannot be added without a
// race.
type reactions struct {
	mu   sync.Mutex
	list []clienttesting.SimpleReactor
}

func (r *reactions) prepend(verb, resource string, f clienttesting.ReactionFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append([]clienttesting.SimpleReactor{{Verb: verb, Resource: resource, Reaction: f}}, r.list...)
}

func (r *reactions) react(action clienttesting.Action) (bool, runtime.Object, error) {
	r.mu.Lock()
	list := r.list
	r.mu.Unlock()
	for _, reactor := range list {
		if !reactor.Handles(action) {
			continue
		}
		if handled, obj, err := reactor.React(action); handled {
			return true, obj, err
		}
	}
	return false, nil, nil
}

func newRack(t *testing.T, options ...func(*rack)) *rack {
	t.Helper()
	r := &rack{t: t, ctx: context.Background(), kube: kubefake.NewClientset(), dir: tempDir(t), host: sim.HostDir(tempDir(t)), clock: clock.RealClock{}, stop: func() {}, judge: grant}
	r.macrack = macrackfake.NewSimpleClientset(
		&rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: serial, ClassName: "base"}},
		&instancev1alpha1.InstanceClass{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: instancev1alpha1.InstanceClassSpec{Resources: instancev1alpha1.InstanceClassResources{
			CPU: scalar.MustParse("4"), Memory: scalar.MustParse("8Gi"), Storage: scalar.MustParse("16Mi"),
		}}},
		&imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "macos-26"}, Spec: imagev1alpha1.MacOSImageSpec{
			Source: imagev1alpha1.ImageSource{Reference: "registry.example.com/macos:26", Digest: "sha256:26"}, DiskSize: scalar.MustParse("8Mi"),
		}},
	)
	fakes.RefuseStale(r.macrack, func(old, obj runtime.Object) error { return r.judge(old, obj) })
	fakes.CopyWatched(r.macrack)
	fakes.CopyWatched(r.kube)
	r.kube.PrependReactor("*", "*", r.onKube.react)
	r.macrack.PrependReactor("*", "*", r.onMacRack.react)
	require.NoError(t, r.host.Init(serial, "boot-1"))
	r.launcher = &slots.InProcess{Backend: &sim.Backend{Host: r.host, Clock: clock.RealClock{}}, Clock: clock.RealClock{}}
	for _, o := range options {
		o(r)
	}
	if r.images == nil {
		r.images = &images.Simulated{Dir: filepath.Join(r.dir, "images"), Clock: r.clock}
	}
	r.lease(tenant, "lease-1")
	r.start()
	t.Cleanup(func() {
		r.stop()
		ended := make(chan struct{})
		go func() {
			r.launcher.Wait()
			close(ended)
		}()
		for {
			// A runner that is starting has no socket yet.
			for i := range rules.MaxVMsPerMac {
				ctx, cancel := context.WithTimeout(r.ctx, time.Second)
				_, _ = contract.NewClient(r.slot(i)).Kill(ctx)
				cancel()
			}
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return r
}

// grant grants the start of an instance with an identity, as the registry does.
func grant(old, obj runtime.Object) error {
	if err := sameIdentity(old, obj); err != nil {
		return err
	}
	if i, ok := obj.(*instancev1alpha1.MacOSInstance); ok && i.Status.MachineID != "" && i.Status.StartGrantedAt == nil && !rules.InstanceEnded(i.Status.Phase) {
		i.Status.StartGrantedAt = ptr(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
	return nil
}

// sameIdentity refuses another identity, and a second start, as the registry does.
func sameIdentity(old, obj runtime.Object) error {
	was, ok := old.(*instancev1alpha1.MacOSInstance)
	if !ok {
		return nil
	}
	if i := obj.(*instancev1alpha1.MacOSInstance); was.Status.MachineID != "" && was.Status.MachineID != i.Status.MachineID {
		return apierrors.NewInvalid(instancev1alpha1.SchemeGroupVersion.WithKind("MacOSInstance").GroupKind(), i.Name, nil)
	}
	return nil
}

// patched returns the instance after the patch.
func (r *rack) patched(action clienttesting.Action) *instancev1alpha1.MacOSInstance {
	patch := action.(clienttesting.PatchAction)
	stored, err := r.macrack.Tracker().Get(action.GetResource(), action.GetNamespace(), patch.GetName())
	if err != nil {
		return &instancev1alpha1.MacOSInstance{}
	}
	obj, err := fakes.Patched(stored, patch)
	require.NoError(r.t, err)
	return obj.(*instancev1alpha1.MacOSInstance)
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mac")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func (r *rack) slot(i int) contract.SlotDir {
	return contract.SlotDir(filepath.Join(r.dir, "slots", strconv.Itoa(i)))
}

func (r *rack) start() {
	r.t.Helper()
	launch := r.launch
	if launch == nil {
		launch = r.launcher
	}
	a, err := New(Config{
		NodeName: nodeName, Kube: r.kube, Macrack: r.macrack, StateDir: r.dir,
		Host:     &host.Simulated{Dir: r.host, StateDir: r.dir},
		Launcher: launch,
		NewMachineID: func(context.Context) (string, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.machineIDs = append(r.machineIDs, sim.NewMachineID())
			return r.machineIDs[len(r.machineIDs)-1], nil
		},
		Images: r.images, Clock: r.clock, Version: "v1.0.0",
		AnswerTimeout: 2 * time.Second, ProbeInterval: 100 * time.Millisecond,
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r.agent = a
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-done)
	})
}

func (r *rack) restart() {
	r.t.Helper()
	r.stop()
	r.start()
}

// lease binds the Mac to a lease; an empty namespace frees it.
func (r *rack) lease(namespace, name string) {
	r.t.Helper()
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.LeaseRef, m.Status.ReleasingSince = nil, nil
		if namespace != "" {
			m.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}
		}
	})
}

func (r *rack) changeMacNode(change func(*rackv1alpha1.MacNode)) {
	r.t.Helper()
	r.retry(func() error {
		m := r.macNode()
		change(m)
		_, err := r.macrack.RackV1alpha1().MacNodes().UpdateStatus(r.ctx, m, metav1.UpdateOptions{})
		return err
	})
}

func (r *rack) changeInstance(name string, change func(*instancev1alpha1.MacOSInstance)) {
	r.t.Helper()
	r.retry(func() error {
		i := r.instance(name)
		change(i)
		_, err := r.macrack.InstanceV1alpha1().MacOSInstances(i.Namespace).UpdateStatus(r.ctx, i, metav1.UpdateOptions{})
		return err
	})
}

func (r *rack) retry(try func() error) {
	r.t.Helper()
	err := try()
	for i := 0; apierrors.IsConflict(err) && i < 100; i++ {
		err = try()
	}
	require.NoError(r.t, err)
}

func (r *rack) macNode() *rackv1alpha1.MacNode {
	r.t.Helper()
	m, err := r.macrack.RackV1alpha1().MacNodes().Get(r.ctx, nodeName, metav1.GetOptions{})
	require.NoError(r.t, err)
	return m.DeepCopy()
}

func (r *rack) instance(name string) *instancev1alpha1.MacOSInstance {
	r.t.Helper()
	i, err := r.macrack.InstanceV1alpha1().MacOSInstances(tenant).Get(r.ctx, name, metav1.GetOptions{})
	require.NoError(r.t, err)
	return i.DeepCopy()
}

func (r *rack) pod(name string) *corev1.Pod {
	r.t.Helper()
	p, err := r.kube.CoreV1().Pods(tenant).Get(r.ctx, name, metav1.GetOptions{})
	require.NoError(r.t, err)
	return p
}

func newInstance(name string) *instancev1alpha1.MacOSInstance {
	return &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tenant, Name: name, UID: types.UID("uid-" + name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "lease-1", UID: "uid-lease-1"}},
		},
		Spec: instancev1alpha1.MacOSInstanceSpec{LeaseName: "lease-1", ClassName: "small", ImageName: "macos-26"},
		Status: instancev1alpha1.MacOSInstanceStatus{
			Phase: instancev1alpha1.MacOSInstanceScheduled, NodeName: nodeName, SerialNumber: serial, PodName: "pod-" + name,
		},
	}
}

func newPod(instance *instancev1alpha1.MacOSInstance) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: instance.Namespace, Name: "pod-" + instance.Name, UID: types.UID("pod-uid-" + instance.Name), CreationTimestamp: metav1.Now(),
			Labels:      map[string]string{rules.LabelInstance: instance.Name},
			Annotations: map[string]string{rules.AnnotationInstanceUID: string(instance.UID)},
		},
		Spec: corev1.PodSpec{NodeName: nodeName, RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "vm", Image: "macrack.io/vm"}}},
	}
}

func (r *rack) create(instance *instancev1alpha1.MacOSInstance, pod *corev1.Pod) {
	r.t.Helper()
	if instance != nil {
		_, err := r.macrack.InstanceV1alpha1().MacOSInstances(instance.Namespace).Create(r.ctx, instance, metav1.CreateOptions{})
		require.NoError(r.t, err)
	}
	if pod != nil {
		_, err := r.kube.CoreV1().Pods(pod.Namespace).Create(r.ctx, pod, metav1.CreateOptions{})
		require.NoError(r.t, err)
	}
}

// run creates an instance with its pod and waits until it runs.
func (r *rack) run(name string) *instancev1alpha1.MacOSInstance {
	r.t.Helper()
	i := newInstance(name)
	r.create(i, newPod(i))
	r.eventually(func() bool {
		s := r.instance(name).Status
		return s.Phase == instancev1alpha1.MacOSInstanceRunning && s.IPAddress != nil
	}, func() any { return r.instance(name).Status })
	return r.instance(name)
}

func (r *rack) eventually(is func() bool, state func() any) {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			require.FailNow(r.t, "timed out", "%+v", state())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rack) waitPhase(name string, phase instancev1alpha1.MacOSInstancePhase) instancev1alpha1.MacOSInstanceStatus {
	r.t.Helper()
	r.eventually(func() bool { return r.instance(name).Status.Phase == phase }, func() any { return r.instance(name).Status })
	return r.instance(name).Status
}

func (r *rack) waitCondition(name string, status metav1.ConditionStatus, reason string) *metav1.Condition {
	r.t.Helper()
	var c *metav1.Condition
	r.eventually(func() bool {
		c = meta.FindStatusCondition(r.macNode().Status.Conditions, name)
		return c != nil && c.Status == status && c.Reason == reason
	}, func() any { return c })
	return c
}

func (r *rack) waitFree() {
	r.t.Helper()
	r.eventually(func() bool {
		left, err := r.agent.slots.Leftovers()
		return err == nil && len(left) == 0
	}, func() any { return r.agent.slots.Statuses() })
}

func (r *rack) running() int {
	r.t.Helper()
	n, err := r.host.RunningVMs()
	require.NoError(r.t, err)
	return n
}

func (r *rack) records() []rackv1alpha1.AuditRecord {
	r.t.Helper()
	list, err := r.macrack.RackV1alpha1().AuditRecords("").List(r.ctx, metav1.ListOptions{})
	require.NoError(r.t, err)
	return list.Items
}

func (r *rack) post(slot int, path string) {
	r.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.slot(slot).SocketPath())
	}}}
	resp, err := client.Post("http://vm"+path, "", nil)
	require.NoError(r.t, err)
	_ = resp.Body.Close()
}

func (r *rack) slotOf(instance *instancev1alpha1.MacOSInstance) int {
	r.t.Helper()
	s, ok := r.agent.slots.Find(string(instance.UID))
	require.True(r.t, ok)
	return s.Slot
}

func TestPodBecomesVirtualMachine(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Spec.StartupScript = "true"
	r.create(i, newPod(i))
	r.eventually(func() bool { return r.instance("a").Status.Startup != nil }, func() any { return r.instance("a").Status })
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.NotEmpty(t, status.MachineID)
	mac, err := net.ParseMAC(status.MACAddress)
	require.NoError(t, err)
	assert.EqualValues(t, 0b10, mac[0]&0b11, "locally administered, unicast")
	assert.Equal(t, "sha256:26", status.ImageDigest)
	assert.Equal(t, "192.168.64.2", status.IPAddress.Value)
	assert.Equal(t, "GuestAgent", status.IPAddress.Source)
	assert.NotNil(t, status.StartedAt)
	assert.EqualValues(t, 0, status.Startup.ExitCode)
	assert.True(t, meta.IsStatusConditionTrue(status.Conditions, instancev1alpha1.MacOSInstanceImageReady))
	assert.True(t, meta.IsStatusConditionTrue(status.Conditions, instancev1alpha1.MacOSInstanceGuestReady))
	spec, err := r.slot(0).ReadSpec()
	require.NoError(t, err)
	assert.Equal(t, status.MachineID, spec.MachineID, "the VM has the identity that the API has")
	assert.Equal(t, status.MACAddress, spec.MACAddress)
	disk, err := os.Stat(r.slot(0).DiskPath())
	require.NoError(t, err)
	assert.EqualValues(t, 16<<20, disk.Size(), "grown to the class's size")

	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodRunning }, func() any { return r.pod("pod-a").Status })
	assert.True(t, r.pod("pod-a").Status.ContainerStatuses[0].Ready)
	log, err := r.agent.Logs(r.ctx, tenant, "pod-a", "vm", api.ContainerLogOpts{})
	require.NoError(t, err)
	text, err := io.ReadAll(log)
	require.NoError(t, err)
	assert.Contains(t, string(text), "the guest agent responds")

	node, err := r.kube.CoreV1().Nodes().Get(r.ctx, nodeName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, ptr(node.Status.Allocatable[rules.ResourceMacOSVM]).Value())
	assert.Equal(t, []corev1.Taint{{Key: rules.TaintUnleased, Effect: corev1.TaintEffectNoSchedule}}, node.Spec.Taints)
	assert.Equal(t, "darwin", node.Labels[corev1.LabelOSStable])

	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	m := r.macNode().Status
	assert.Equal(t, "boot-1", m.BootID)
	assert.Equal(t, serial, m.Hardware.SerialNumber)
	r.eventually(func() bool { return len(r.macNode().Status.Images) == 1 }, func() any { return r.macNode().Status })
	assert.Equal(t, "macos-26", r.macNode().Status.Images[0].Name)

	// It stops on request, and is reported as stopped only after its end.
	stopped := make(chan int, 1)
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if r.patched(action).Status.Phase == instancev1alpha1.MacOSInstanceStopped {
			n, _ := r.host.RunningVMs()
			stopped <- n
		}
		return false, nil, nil
	})
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.Phase = instancev1alpha1.MacOSInstanceStopping
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), By: "acme", Reason: "Asked", GracePeriodSeconds: 30}
	})
	status = r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	assert.Equal(t, 0, <-stopped)
	assert.Nil(t, status.IPAddress)
	assert.NotNil(t, status.StoppedAt)
	assert.Equal(t, "Asked", status.Message)
	r.waitFree()
	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodSucceeded }, func() any { return r.pod("pod-a").Status })
}

func ptr[T any](v T) *T { return &v }

// Changes of a pod's metadata by its tenant do not end the virtual machine.
func TestMetadataOfPodsIsNotTheirIdentity(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"label removed":      func(p *corev1.Pod) { p.Labels = nil },
		"label changed":      func(p *corev1.Pod) { p.Labels[rules.LabelInstance] = "b" },
		"annotation removed": func(p *corev1.Pod) { p.Annotations = nil },
		"annotation changed": func(p *corev1.Pod) { p.Annotations[rules.AnnotationInstanceUID] = "other" },
		"owner removed":      func(p *corev1.Pod) { p.OwnerReferences = nil },
		"adopted by a ReplicaSet": func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "b", UID: "b", Controller: ptr(true)}}
		},
		"all of it removed": func(p *corev1.Pod) { p.Labels, p.Annotations, p.OwnerReferences = nil, nil, nil },
		"given a finalizer": func(p *corev1.Pod) { p.Finalizers = []string{"example.com/x"} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t, withGuestAgent)
			r.run("a")
			r.guestReady("a")
			pod := r.pod("pod-a")
			change(pod)
			_, err := r.kube.CoreV1().Pods(tenant).Update(r.ctx, pod, metav1.UpdateOptions{})
			require.NoError(t, err)
			r.eventually(func() bool {
				seen, err := r.agent.node.Pods().Pods(tenant).Get("pod-a")
				return err == nil && assert.ObjectsAreEqual(pod.ObjectMeta.Labels, seen.Labels) && assert.ObjectsAreEqual(pod.Annotations, seen.Annotations) &&
					len(pod.OwnerReferences) == len(seen.OwnerReferences) && len(pod.Finalizers) == len(seen.Finalizers)
			}, func() any { return "the agent has not seen the change" })
			require.NoError(t, r.agent.settlePod(r.ctx, types.NamespacedName{Namespace: tenant, Name: "pod-a"}))
			require.NoError(t, r.agent.reconcileInstance(r.ctx, types.NamespacedName{Namespace: tenant, Name: "a"}))
			assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
			assert.Equal(t, corev1.PodRunning, r.pod("pod-a").Status.Phase)
			assert.Equal(t, 1, r.running())
			text, err := r.sh("echo reached")
			require.NoError(t, err)
			assert.Equal(t, "reached\n", text)
			assert.Empty(t, r.records())
		})
	}
}

func TestForeignPodsAreRefused(t *testing.T) {
	tests := []struct {
		name     string
		instance func(*instancev1alpha1.MacOSInstance)
		pod      func(*corev1.Pod)
		message  string
		// fails: the instance fails too.
		fails bool
		// kind is the type of the record; empty without a record.
		kind rackv1alpha1.AuditRecordType
	}{
		{name: "no virtual machine at all", pod: func(p *corev1.Pod) { p.Labels, p.Annotations = nil, nil }, message: "a Mac runs only placeholder pods"},
		{name: "a system's agent for every Node", pod: func(p *corev1.Pod) { p.Namespace, p.Labels, p.Annotations = "kube-system", nil, nil }, message: "a Mac runs only placeholder pods", kind: rackv1alpha1.CrossTenantRejected},
		{name: "no such instance", pod: func(p *corev1.Pod) { p.Name, p.Labels[rules.LabelInstance] = "pod-b", "b" }, message: "MacOSInstance acme/b does not exist", kind: rackv1alpha1.InstanceRejected},
		{name: "an earlier instance of the name", pod: func(p *corev1.Pod) { p.Annotations[rules.AnnotationInstanceUID] = "other" }, message: "which has UID uid-a", kind: rackv1alpha1.InstanceRejected},
		{name: "a second pod for an instance", pod: func(p *corev1.Pod) { p.Name = "impostor" }, message: `and pod "pod-a"`, kind: rackv1alpha1.InstanceRejected},
		{name: "another Mac's instance", instance: func(i *instancev1alpha1.MacOSInstance) { i.Status.NodeName = "mac-2" }, message: `is on Mac "mac-2"`, kind: rackv1alpha1.InstanceRejected},
		{name: "another namespace", pod: func(p *corev1.Pod) { p.Namespace = "globex" }, message: "MacOSInstance globex/a does not exist", kind: rackv1alpha1.CrossTenantRejected},
		{name: "another lease of the tenant", instance: func(i *instancev1alpha1.MacOSInstance) { i.Spec.LeaseName = "lease-2" }, message: "belongs to lease lease-1 (UID uid-lease-1); the instance belongs to another lease named lease-2", fails: true, kind: rackv1alpha1.InstanceRejected},
		{name: "an earlier lease of the name", instance: func(i *instancev1alpha1.MacOSInstance) { i.OwnerReferences[0].UID = "uid-earlier" }, message: "the instance belongs to another lease named lease-1", fails: true, kind: rackv1alpha1.InstanceRejected},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRack(t)
			i := newInstance("a")
			pod := newPod(i)
			if test.instance != nil {
				test.instance(i)
			}
			if test.pod != nil {
				test.pod(pod)
			}
			r.create(i, pod)
			get := func() corev1.PodStatus {
				p, err := r.kube.CoreV1().Pods(pod.Namespace).Get(r.ctx, pod.Name, metav1.GetOptions{})
				require.NoError(t, err)
				return p.Status
			}
			r.eventually(func() bool { return get().Phase == corev1.PodFailed }, func() any { return get() })
			assert.Equal(t, "ForeignPod", get().Reason)
			assert.Contains(t, get().Message, test.message)
			assert.Equal(t, 0, r.running())
			if test.fails {
				assert.Contains(t, r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed).Message, test.message)
			} else {
				assert.Equal(t, instancev1alpha1.MacOSInstanceScheduled, r.instance("a").Status.Phase)
			}
			if test.kind == "" {
				assert.Empty(t, r.records())
				return
			}
			require.NotEmpty(t, r.records())
			record := r.records()[0]
			assert.Equal(t, test.kind, record.Type)
			assert.Equal(t, rackv1alpha1.LayerAgent, record.Details.Layer)
			assert.Equal(t, pod.Namespace, record.Namespace)
		})
	}
}

func TestMacOfAnotherTenant(t *testing.T) {
	for name, change := range map[string]func(*rack){
		"leased to another": func(r *rack) { r.lease("globex", "lease-1") },
		"leased to nobody":  func(r *rack) { r.lease("", "") },
		"being released": func(r *rack) {
			r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
		},
		"leased to a new one": func(r *rack) { r.lease(tenant, "lease-2") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t, func(r *rack) {})
			change(r)
			i := newInstance("a")
			r.create(i, newPod(i))
			r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
			assert.Empty(t, r.instance("a").Status.MachineID)
			assert.Equal(t, 0, r.running())
			r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodFailed }, func() any { return r.pod("pod-a").Status })
		})
	}
	t.Run("taken away from a running one", func(t *testing.T) {
		r := newRack(t)
		r.run("a")
		r.lease("globex", "lease-9")
		assert.Contains(t, r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped).Message, "is leased to another tenant")
		assert.Equal(t, 0, r.running())
	})
}

func TestThirdVirtualMachineIsRefused(t *testing.T) {
	r := newRack(t)
	a, b := r.run("a"), r.run("b")
	assert.NotEqual(t, a.Status.IPAddress.Value, b.Status.IPAddress.Value)
	assert.NotEqual(t, a.Status.MachineID, b.Status.MachineID)
	c := newInstance("c")
	r.create(c, newPod(c))
	status := r.waitPhase("c", instancev1alpha1.MacOSInstanceFailed)
	assert.Contains(t, status.Message, "SlotsFull: 2 virtual machines are on the Mac")
	assert.Empty(t, status.MachineID)
	r.eventually(func() bool { return r.pod("pod-c").Status.Reason == "SlotsFull" }, func() any { return r.pod("pod-c").Status })
	assert.Equal(t, 2, r.running())
	assert.Equal(t, "SlotsFull", r.records()[0].Details.Reason)

	// An instance waits for a slot that is being erased.
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) {
		i.Status.StopRequest = &instancev1alpha1.StopRequest{At: metav1.Now(), GracePeriodSeconds: 30}
	})
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	r.run("d")
	assert.Equal(t, 2, r.running())
}

func TestRestartAdopts(t *testing.T) {
	r := newRack(t)
	before := r.run("a")
	r.eventually(func() bool { return r.pod("pod-a").Status.Phase == corev1.PodRunning }, func() any { return r.pod("pod-a").Status })
	r.restart()
	r.run("b") // the new agent works
	after := r.instance("a")
	assert.Equal(t, before.Status.MachineID, after.Status.MachineID)
	assert.Equal(t, before.Status.MACAddress, after.Status.MACAddress)
	assert.Equal(t, before.Status.StartedAt, after.Status.StartedAt)
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, after.Status.Phase)
	assert.Equal(t, corev1.PodRunning, r.pod("pod-a").Status.Phase)
	assert.Equal(t, 2, r.running())
	assert.Len(t, r.machineIDs, 2, "an adopted VM keeps its identity")

	// It ends while no agent runs.
	r.stop()
	r.post(0, sim.PathCrash)
	r.eventually(func() bool { return r.running() == 1 }, func() any { return nil })
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	r.start()
	status := r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	assert.Contains(t, status.Message, "crashed")
	assert.Nil(t, status.IPAddress)
}

func TestIdentityIsTheRegistrysToAccept(t *testing.T) {
	var refused []string
	r := newRack(t, func(r *rack) {
		r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			i := r.patched(action)
			if i.Status.MachineID == "" || len(refused) >= 2 {
				return false, nil, nil
			}
			n, _ := r.host.RunningVMs()
			assert.Equal(t, 0, n, "no VM starts before its identity is accepted")
			refused = append(refused, i.Status.MachineID)
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), i.Name, fmt.Errorf("the machine ID is another instance's"))
		})
	})
	i := r.run("a")
	require.Len(t, refused, 2)
	assert.NotEqual(t, refused[0], refused[1])
	assert.NotContains(t, refused, i.Status.MachineID)
	spec, err := r.slot(0).ReadSpec()
	require.NoError(t, err)
	assert.Equal(t, i.Status.MachineID, spec.MachineID)
}

func (r *rack) loseInstance(name string) {
	r.t.Helper()
	require.NoError(r.t, r.macrack.Tracker().Delete(instancev1alpha1.SchemeGroupVersion.WithResource("macosinstances"), tenant, name))
}

// A virtual machine without an instance means that the API has lost state: the agent must not stop
// it.
func TestVirtualMachineWithoutInstance(t *testing.T) {
	for name, test := range map[string]struct {
		now func(r *rack, lost *instancev1alpha1.MacOSInstance)
		why string
	}{
		"no such instance": {func(*rack, *instancev1alpha1.MacOSInstance) {}, "the API has no such instance"},
		"another one of its name": {func(r *rack, lost *instancev1alpha1.MacOSInstance) {
			other := newInstance("a")
			other.UID = "uid-other"
			r.create(other, nil)
		}, "the API has another instance of that name (UID uid-other)"},
		"it is on another Mac": {func(r *rack, lost *instancev1alpha1.MacOSInstance) {
			elsewhere := lost.DeepCopy()
			elsewhere.ResourceVersion, elsewhere.Status.NodeName = "", "mac-2"
			r.create(elsewhere, nil)
		}, `the API has the instance on Mac "mac-2"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t)
			lost := r.run("a")
			// The agent's last write is newer than all objects of an API that was restored to an
			// earlier state.
			written := lost.DeepCopy()
			written.ResourceVersion = "1000000"
			r.agent.written.Mutation(written)
			r.loseInstance("a")
			test.now(r, lost)
			r.eventually(func() bool {
				c := meta.FindStatusCondition(r.macNode().Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy)
				return c != nil && c.Reason == rackv1alpha1.ReasonUnknownInstance && strings.Contains(c.Message, test.why)
			}, func() any { return r.macNode().Status.Conditions })
			c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
			assert.Contains(t, c.Message, "slot 0 has run acme/a (UID uid-a) since "+lost.Status.StartedAt.UTC().Format(time.RFC3339))
			r.changeMacNode(func(m *rackv1alpha1.MacNode) {
				m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonUnknownInstance, Since: metav1.Now(), EndInstances: []string{"uid-b"}}
			})

			// No VM starts, even after a restart of the agent, and the virtual machine continues to
			// run. Until the agent has looked up its instance, it does not report the slots as
			// healthy.
			r.onMacRack.prepend("patch", "macnodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if patch := string(action.(clienttesting.PatchAction).GetPatch()); strings.Contains(patch, "SlotsObtainable") {
					assert.Equal(t, 0, r.running(), patch)
				}
				return false, nil, nil
			})
			r.restart()
			b := newInstance("b")
			r.create(b, newPod(b))
			r.eventually(func() bool { return strings.Contains(r.instance("b").Status.Message, "quarantined") }, func() any { return r.instance("b").Status })
			r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
			assert.Equal(t, 1, r.running())
			assert.Empty(t, r.records())

			// An administrator decides.
			r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine.EndInstances = []string{"uid-a"} })
			r.waitFree()
			assert.Equal(t, 0, r.running())
			assert.True(t, r.recorded("UnknownInstance"))
			r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
			r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil })
			r.waitPhase("b", instancev1alpha1.MacOSInstanceRunning)
		})
	}
}

// After the API has been restored, the instance exists again.
func TestUnknownInstanceReturns(t *testing.T) {
	r := newRack(t)
	lost := r.run("a")
	r.loseInstance("a")
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
	lost.ResourceVersion = ""
	r.create(lost, nil)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase)
	assert.Equal(t, 1, r.running())
}

func TestSilenceOfTheAPIEndsNothing(t *testing.T) {
	r := newRack(t)
	r.run("a")
	broken := true
	r.onMacRack.prepend("get", "macosinstances", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, apierrors.NewServiceUnavailable("down")
	})
	slot, ok := r.agent.slots.Find("uid-a")
	require.True(t, ok)
	require.Error(t, r.agent.syncMismatch(r.ctx, slot))
	broken = false
	require.NoError(t, r.agent.syncMismatch(r.ctx, slot), "the API knows the instance")
	assert.Equal(t, 1, r.running())
	still, ok := r.agent.slots.Find("uid-a")
	require.True(t, ok)
	assert.Equal(t, contract.VMRunning, still.State.VM)
}

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
		r.edit(i, func(i *instancev1alpha1.MacOSInstance) { i.Status.Message = "of somebody else" })
		<-hangs // the agent reports that there is nothing to say
		r.edit(i, stop)
		gone(r)
	})
}

// No VM is launched before the registry has granted its start.
func TestLaunchWaitsForTheGrant(t *testing.T) {
	var withheld atomic.Bool
	withheld.Store(true)
	asked := make(chan struct{}, 1000)
	r := newRack(t, func(r *rack) {
		r.judge = func(old, obj runtime.Object) error {
			if i, ok := obj.(*instancev1alpha1.MacOSInstance); ok && i.Status.MachineID != "" && withheld.Load() {
				asked <- struct{}{}
				return sameIdentity(old, obj)
			}
			return grant(old, obj)
		}
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	for range 3 {
		<-asked
	}
	assert.Equal(t, instancev1alpha1.MacOSInstanceStarting, r.instance("a").Status.Phase)
	for _, s := range r.agent.slots.Statuses() {
		assert.Equal(t, slots.Free, s.Phase)
	}
	withheld.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.Len(t, r.machineIDs, 1, "the identity is the first one's")
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
func TestStopOfWhatHasNotStartedIsTakenUpAgain(t *testing.T) {
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

func TestStartGoesOnWithTheAcceptedIdentity(t *testing.T) {
	r := newRack(t)
	i := newInstance("a")
	i.Status.Phase, i.Status.MachineID, i.Status.MACAddress = instancev1alpha1.MacOSInstanceStarting, "bQ==", "02:00:00:00:00:01"
	r.create(i, newPod(i))
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.Equal(t, "bQ==", r.instance("a").Status.MachineID)
	assert.Empty(t, r.machineIDs)
}

func TestStuckKernelQuota(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.Leak(2))
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "refuses") }, func() any { return r.instance("a").Status })
	c := meta.FindStatusCondition(r.macNode().Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy)
	require.NotNil(t, c)
	assert.Equal(t, metav1.ConditionTrue, c.Status, "one refusal is no proof")
	ledger := r.ledgerFails(apierrors.NewServiceUnavailable("down"))
	r.eventually(func() bool {
		fake.Step(time.Second)
		return ledger.tries.Load() > 1
	}, func() any { return r.instance("a").Status })
	assert.Equal(t, instancev1alpha1.MacOSInstanceStarting, r.instance("a").Status.Phase, "it is on record before it has failed")
	ledger.away.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	c = r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck)
	assert.Regexp(t, `refused a virtual machine ([7-9]|\d\d+) times in \S+ although 0 of 2 run`, c.Message)
	assert.Equal(t, rackv1alpha1.LayerKernel, r.records()[0].Details.Layer)

	// No further VM is started, even after a restart of the agent.
	r.restart()
	b := newInstance("b")
	r.create(b, newPod(b))
	r.eventually(func() bool { return strings.Contains(r.instance("b").Status.Message, "quarantined") }, func() any { return r.instance("b").Status })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck)

	// A reboot ends the quarantine.
	r.stop()
	require.NoError(t, r.host.Reboot("boot-2"))
	r.start()
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	assert.Equal(t, "boot-2", r.macNode().Status.BootID)
	r.waitPhase("b", instancev1alpha1.MacOSInstanceRunning)
}

func TestRefusalThatPasses(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.Leak(2))
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return strings.Contains(r.instance("a").Status.Message, "refuses") }, func() any { return r.instance("a").Status })
	require.NoError(t, r.host.Reboot("boot-2")) // the kernel finds its slots again
	r.eventually(func() bool {
		fake.Step(time.Second)
		return r.instance("a").Status.Phase == instancev1alpha1.MacOSInstanceRunning
	}, func() any { return r.instance("a").Status })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
}

// Time without tries is no proof against the kernel, and a try does not wait for the API.
func TestRefusalWhileTheAPIIsAway(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	r := newRack(t, func(r *rack) {
		r.clock = fake
		require.NoError(t, r.host.Leak(2))
	})
	var reports atomic.Int32
	r.onMacRack.prepend("patch", "macosinstances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !strings.Contains(r.patched(action).Status.Message, "refuses") {
			return false, nil, nil
		}
		reports.Add(1)
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	i := newInstance("a")
	r.create(i, newPod(i))
	r.eventually(func() bool { return reports.Load() > 0 }, func() any { return r.instance("a").Status })
	require.NoError(t, r.host.Reboot("boot-2")) // the kernel finds its slots again
	fake.Step(2 * refusalWindow)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.Nil(t, r.agent.state.get().Unhealthy)
}

func TestAdministratorEndsQuarantine(t *testing.T) {
	r := newRack(t, func(r *rack) {
		s, err := openState(filepath.Join(r.dir, "state.json"))
		require.NoError(t, err)
		require.NoError(t, s.change(func(m *memory) {
			m.Unhealthy = &unhealthy{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: "stuck", BootID: "boot-1"}
		}))
	})
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonKernelQuotaStuck)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Since: metav1.Now()}
	})
	r.eventually(func() bool { u := r.agent.state.get().Unhealthy; return u != nil && u.Quarantined }, func() any { return r.agent.state.get() })
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Quarantine = nil })
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
}

func TestSilentRunner(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	slot := r.slotOf(i)
	r.post(slot, sim.PathHang)
	c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonCannotReattach)
	assert.Contains(t, c.Message, "does not respond")
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, r.instance("a").Status.Phase, "silence ends nothing")
	r.post(slot, sim.PathWake)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "SlotsObtainable")
	r.eventually(func() bool { return r.instance("a").Status.Message == "" }, func() any { return r.instance("a").Status })
}

func TestScrub(t *testing.T) {
	r := newRack(t)
	_, err := r.macrack.ImageV1alpha1().MacOSImages().Create(r.ctx, &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: "private"},
		Spec: imagev1alpha1.MacOSImageSpec{
			Source: imagev1alpha1.ImageSource{Digest: "sha256:private"}, DiskSize: scalar.MustParse("8Mi"),
			PullSecretRef: &imagev1alpha1.SecretReference{Namespace: tenant, Name: "pull"},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.run("a")
	b := newInstance("b")
	b.Spec.ImageName = "private"
	r.create(b, newPod(b))
	r.waitPhase("b", instancev1alpha1.MacOSInstanceRunning)

	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.waitPhase("a", instancev1alpha1.MacOSInstanceStopped)
	r.waitPhase("b", instancev1alpha1.MacOSInstanceStopped)
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
	report := r.macNode().Status.Scrub
	require.NotNil(t, report)
	assert.EqualValues(t, "uid-lease-1", report.LeaseUID)
	assert.Empty(t, report.Remaining)
	removed := strings.Join(report.Removed, "\n")
	for _, path := range []string{"slots/0/disk/disk.img", "slots/1/disk/disk.img", "slots/0/console.log", "images/private"} {
		assert.Contains(t, removed, path)
	}
	assert.NotContains(t, removed, "macos-26", "the golden image is no tenant's")
	left, err := r.agent.slots.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, 0, r.running())

	// The next lease starts with an empty list.
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.Scrub = nil })
	r.lease("globex", "lease-2")
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool { s := r.macNode().Status.Scrub; return s != nil && s.LeaseUID == "uid-lease-2" }, func() any { return r.macNode().Status })
	assert.Empty(t, r.macNode().Status.Scrub.Removed)
}

func TestScrubWaitsForVirtualMachines(t *testing.T) {
	r := newRack(t)
	i := r.run("a")
	r.post(r.slotOf(i), sim.PathHang)
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonCannotReattach)
	// An instance that was declared dead keeps its slot while its virtual machine runs.
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = instancev1alpha1.MacOSInstanceFailed })
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool {
		m, err := r.agent.macNodes.Get(nodeName)
		if err != nil || m.Status.ReleasingSince == nil {
			return false
		}
		i, err := r.agent.instances.MacOSInstances(tenant).Get("a")
		return err == nil && i.Status.Phase == instancev1alpha1.MacOSInstanceFailed
	}, func() any { return nil })
	require.NoError(t, r.agent.reconcileMacNode(r.ctx))
	assert.Nil(t, r.macNode().Status.Scrub, "what cannot be reached may still be there")
	r.post(r.slotOf(i), sim.PathWake)
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
}

// The scrub waits only for the end of an instance, and no slot reports that end.
func TestScrubWaitsForInstances(t *testing.T) {
	r := newRack(t)
	r.create(newInstance("a"), nil)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) { m.Status.ReleasingSince = ptr(metav1.Now()) })
	r.eventually(func() bool {
		m := r.macNode().Status
		return m.Hardware != nil
	}, func() any { return r.macNode().Status })
	seen := func() bool {
		m, err := r.agent.macNodes.Get(nodeName)
		_, instanceErr := r.agent.instances.MacOSInstances(tenant).Get("a")
		return err == nil && instanceErr == nil && m.ResourceVersion == r.macNode().ResourceVersion
	}
	r.eventually(seen, func() any { return r.macNode().Status })
	require.NoError(t, r.agent.reconcileMacNode(r.ctx))
	assert.Nil(t, r.macNode().Status.Scrub)
	r.changeInstance("a", func(i *instancev1alpha1.MacOSInstance) { i.Status.Phase = instancev1alpha1.MacOSInstanceFailed })
	r.waitCondition(rackv1alpha1.MacNodeScrubbed, metav1.ConditionTrue, "NothingLeft")
}

func TestSerialNumberOfAnotherMac(t *testing.T) {
	r := newRack(t, func(r *rack) {
		r.host = sim.HostDir(tempDir(r.t))
		require.NoError(r.t, r.host.Init("C02OTHER", "boot-1"))
	})
	c := r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonSerialMismatch)
	assert.Contains(t, c.Message, "C02OTHER")
}

func TestNodeIsRegisteredAnew(t *testing.T) {
	r := newRack(t)
	get := func() *corev1.Node {
		n, err := r.kube.CoreV1().Nodes().Get(r.ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return n
	}
	r.eventually(func() bool { return get() != nil }, func() any { return nil })
	r.run("a")

	// The taint set by the controllers survives a restart of the agent.
	node := get()
	tainted := []corev1.Taint{{Key: rules.TaintTenant, Value: tenant, Effect: corev1.TaintEffectNoSchedule}}
	node.Spec.Taints = tainted
	_, err := r.kube.CoreV1().Nodes().Update(r.ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)
	r.restart()
	r.run("b")
	assert.Equal(t, tainted, get().Spec.Taints)

	require.NoError(t, r.kube.CoreV1().Nodes().Delete(r.ctx, nodeName, metav1.DeleteOptions{}))
	r.eventually(func() bool { return get() != nil }, func() any { return nil })
	assert.Equal(t, rules.TaintUnleased, get().Spec.Taints[0].Key)
	assert.Equal(t, 2, r.running())
}

func TestNothingNewIsNotWritten(t *testing.T) {
	r := newRack(t)
	r.run("a")
	r.eventually(func() bool { return len(r.macNode().Status.Images) == 1 }, func() any { return r.macNode().Status })
	writes := func() int {
		n := 0
		for _, action := range r.macrack.Actions() {
			if action.GetVerb() == "patch" {
				n++
			}
		}
		return n
	}
	var before int
	r.eventually(func() bool {
		m, err := r.agent.macNodes.Get(nodeName)
		if err != nil {
			return false
		}
		i, err := r.agent.instances.MacOSInstances(tenant).Get("a")
		before = writes()
		return err == nil && m.ResourceVersion == r.macNode().ResourceVersion && i.ResourceVersion == r.instance("a").ResourceVersion
	}, func() any { return nil })
	for range 5 {
		require.NoError(t, r.agent.reconcileMacNode(r.ctx))
		require.NoError(t, r.agent.reconcileInstance(r.ctx, types.NamespacedName{Namespace: tenant, Name: "a"}))
	}
	assert.Equal(t, before, writes())
}

func TestOneAgentAtATime(t *testing.T) {
	r := newRack(t)
	r.run("a")
	second, err := New(r.agent.config)
	require.NoError(t, err)
	require.ErrorIs(t, second.Run(r.ctx), contract.ErrLocked)
}

func TestHeartbeats(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now().Add(48 * time.Hour).Truncate(time.Second))
	r := newRack(t, func(r *rack) { r.clock = fake })
	lease := func() *coordinationv1.Lease {
		l, err := r.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(r.ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return l
	}
	r.eventually(func() bool { return lease() != nil }, func() any { return nil })
	assert.True(t, lease().Spec.RenewTime.Time.Equal(fake.Now()), "heartbeats carry the agent's time, %s", lease().Spec.RenewTime)

	// The interval is that of the RackConfig.
	_, err := r.macrack.ConfigV1alpha1().RackConfigs().Create(r.ctx, &configv1alpha1.RackConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       configv1alpha1.RackConfigSpec{Agent: configv1alpha1.AgentConfig{HeartbeatInterval: scalar.NewDuration(time.Second)}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	r.eventually(func() bool { return *lease().Spec.LeaseDurationSeconds == 4 }, func() any { return lease() })
	fake.Step(time.Minute)
	r.eventually(func() bool { return lease().Spec.RenewTime.Time.Equal(fake.Now()) }, func() any { return lease() })
}

// The instance may be deleted before the agent sees its own last write.
func TestInstanceGoesAtOnce(t *testing.T) {
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
	require.NoError(t, r.agent.reconcilePod(r.ctx, types.NamespacedName{Namespace: tenant, Name: "pod-a"}))
	assert.Empty(t, r.records(), "nobody was refused")
}

func TestWhatHasEndedStaysEnded(t *testing.T) {
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
