package agent

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

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
			require.NoError(t, r.agent.pods.Reconcile(r.ctx, types.NamespacedName{Namespace: tenant, Name: "pod-a"}))
			require.NoError(t, r.agent.instance.Reconcile(r.ctx, types.NamespacedName{Namespace: tenant, Name: "a"}))
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
		"not leased":        func(r *rack) { r.lease("", "") },
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

// ledger accepts records, or fails as an unavailable or overloaded one.
type ledger struct {
	away  atomic.Bool
	tries atomic.Int32
}

func (r *rack) ledgerFails(err error) *ledger {
	l := &ledger{}
	l.away.Store(true)
	r.onMacRack.prepend("create", "auditrecords", func(clienttesting.Action) (bool, runtime.Object, error) {
		l.tries.Add(1)
		return l.away.Load(), nil, err
	})
	return l
}

func TestInstanceIsNotRefusedBeforeItIsRecorded(t *testing.T) {
	r := newRack(t)
	ledger := r.ledgerFails(apierrors.NewTooManyRequests("too many rejections", 0))
	i := newInstance("a")
	i.Spec.LeaseName = "lease-2"
	r.create(i, newPod(i))
	r.eventually(func() bool { return ledger.tries.Load() > 1 }, func() any { return r.instance("a").Status })
	assert.Equal(t, instancev1alpha1.MacOSInstanceScheduled, r.instance("a").Status.Phase)
	ledger.away.Store(false)
	r.waitPhase("a", instancev1alpha1.MacOSInstanceFailed)
	assert.True(t, r.recorded("ForeignPod"))
}

// A foreign pod is refused even while the ledger is unavailable, and is recorded later.
func TestForeignPodIsRecordedLater(t *testing.T) {
	r := newRack(t)
	ledger := r.ledgerFails(apierrors.NewServiceUnavailable("down"))
	pod := newPod(newInstance("gone"))
	r.create(nil, pod)
	r.eventually(func() bool { return r.pod(pod.Name).Status.Phase == corev1.PodFailed }, func() any { return r.pod(pod.Name).Status })
	require.NoError(t, r.kube.CoreV1().Pods(tenant).Delete(r.ctx, pod.Name, metav1.DeleteOptions{}))
	assert.Empty(t, r.records())
	ledger.away.Store(false)
	r.eventually(func() bool { return len(r.records()) > 0 }, func() any { return nil })
	require.Len(t, r.records(), 1)
	assert.Equal(t, "ForeignPod", r.records()[0].Details.Reason)
	assert.Equal(t, "gone", r.records()[0].Instance.Name)
}

// The pod of an unknown virtual machine remains while the virtual machine runs.
func TestPodOfUnknownVirtualMachine(t *testing.T) {
	r := newRack(t)
	r.run("a")
	r.loseRunning("a")
	r.waitCondition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionFalse, rackv1alpha1.ReasonUnknownInstance)
	var deleted atomic.Bool
	r.onKube.prepend("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
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
	require.NoError(t, r.agent.pods.Reconcile(t.Context(), types.NamespacedName{Namespace: tenant, Name: "pod-a"}))
	assert.False(t, deleted.Load())
	assert.Equal(t, 1, r.running())
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonUnknownInstance, Since: metav1.Now(), EndInstances: []string{"uid-a"}}
	})
	r.eventually(deleted.Load, func() any { return r.pod("pod-a") })
	assert.Equal(t, 0, r.running())
}
