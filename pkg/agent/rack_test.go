package agent

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
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

func ptr[T any](v T) *T { return &v }
