package instance

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/imagestatus"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/pods"
	"macrack.io/macrack/pkg/agent/queue"
	"macrack.io/macrack/pkg/agent/witness"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	macrackfake "macrack.io/macrack/pkg/generated/clientset/versioned/fake"
	"macrack.io/macrack/pkg/generated/informers/externalversions"
)

const nodeName = "mac-1"

// fixture is a Controller with an instance whose start was granted.
type fixture struct {
	*Controller
	kube     *kubefake.Clientset
	macrack  *macrackfake.Clientset
	instance *instancev1alpha1.MacOSInstance
}

func newFixture(t *testing.T) *fixture {
	clock := clocktesting.NewFakeClock(time.Now())
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: "a", UID: "uid-a",
			OwnerReferences: []metav1.OwnerReference{{Kind: "MacNodeLease", Name: "lease-1", UID: "uid-lease-1"}},
		},
		Spec: instancev1alpha1.MacOSInstanceSpec{LeaseName: "lease-1"},
		Status: instancev1alpha1.MacOSInstanceStatus{
			Phase: instancev1alpha1.MacOSInstanceStarting, NodeName: nodeName, PodName: "pod-a",
			MachineID: "bQ==", MACAddress: "02:00:00:00:00:01", ImageDigest: "sha256:26", StartGrantedAt: &metav1.Time{Time: clock.Now()},
			Conditions: []metav1.Condition{{
				Type: instancev1alpha1.MacOSInstanceImageReady, Status: metav1.ConditionTrue, Reason: imagestatus.ReasonCached,
			}},
		},
	}
	macNode := &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: rackv1alpha1.MacNodeStatus{
		LeaseRef: &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "lease-1", UID: "uid-lease-1"},
	}}
	f := &fixture{
		kube: kubefake.NewClientset(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "pod-a"}, Spec: corev1.PodSpec{NodeName: nodeName},
		}),
		macrack:  macrackfake.NewSimpleClientset(instance.DeepCopy(), macNode.DeepCopy()),
		instance: instance,
	}
	informers := externalversions.NewSharedInformerFactory(f.macrack, 0)
	instances, macNodes := informers.Instance().V1alpha1().MacOSInstances(), informers.Rack().V1alpha1().MacNodes()
	require.NoError(t, instances.Informer().GetStore().Add(instance))
	require.NoError(t, macNodes.Informer().GetStore().Add(macNode))
	q := queue.New[queue.Key](clock, time.Second)
	config := Config{
		Client: f.macrack, Clock: clock, Queue: q,
		Instances: objects.NewInstances(nodeName, f.macrack, instances, q, clock),
		MacNode:   objects.NewMacNode(nodeName, f.macrack, macNodes, clock),
	}
	config.Pods = pods.New(pods.Config{Kube: f.kube, Instances: config.Instances, MacNode: config.MacNode, Queue: q})
	kept, err := witness.Open(filepath.Join(t.TempDir(), "witness.json"))
	require.NoError(t, err)
	config.Witness = witness.New(witness.Config{File: kept, MacNode: config.MacNode, Instances: config.Instances})
	f.Controller = New(config)
	return f
}

// A stale cache does not end a virtual machine.
func TestPodThatTheCacheHasNot(t *testing.T) {
	f := newFixture(t)
	stop, _, _, err := f.mustStop(t.Context(), f.instance, nil)
	require.NoError(t, err)
	assert.False(t, stop, "the API has the pod")
	f.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	stop, _, _, err = f.mustStop(t.Context(), f.instance, nil)
	require.Error(t, err, "silence of the API ends nothing")
	assert.False(t, stop)
}

// The end of a virtual machine whose pod is gone.
func TestDeletedPod(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.kube.CoreV1().Pods("acme").Delete(t.Context(), "pod-a", metav1.DeleteOptions{}))
	stop, _, why, err := f.mustStop(t.Context(), f.instance, nil)
	require.NoError(t, err)
	assert.True(t, stop)
	assert.Contains(t, why, "pod-a")
}

// A cache that has lost the end of an instance starts no VM: the registry decides.
func TestStartIsNotGrantedTwice(t *testing.T) {
	f := newFixture(t)
	image := images.Cached{Digest: f.instance.Status.ImageDigest}
	again, err := f.starter.claim(t.Context(), f.instance, "", image)
	require.NoError(t, err)
	assert.Equal(t, f.instance.Status.MachineID, again.Status.MachineID)
	ended := f.instance.DeepCopy()
	ended.Status.Phase = instancev1alpha1.MacOSInstanceFailed
	_, err = f.macrack.InstanceV1alpha1().MacOSInstances("acme").UpdateStatus(t.Context(), ended, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = f.starter.claim(t.Context(), f.instance, "", image)
	assert.ErrorContains(t, err, "has ended")
}

// An image that boots only with its own machine identifier gives it to its instance.
func TestIdentityFromImage(t *testing.T) {
	image := &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "macos-26"}}
	cached := images.Cached{MachineID: "aW1hZ2U="}
	id, why := machineIDOf(image, cached)
	assert.Empty(t, id+why, "clones have identifiers of their own")
	image.Spec.Identity = imagev1alpha1.ImageIdentityFromImage
	id, why = machineIDOf(image, cached)
	assert.Equal(t, "aW1hZ2U=", id)
	assert.Empty(t, why)
	_, why = machineIDOf(image, images.Cached{})
	assert.Contains(t, why, "Image macos-26 has no machine identifier")

	f := newFixture(t)
	fresh := f.instance.DeepCopy()
	fresh.Status.MachineID, fresh.Status.MACAddress = "", ""
	_, err := f.macrack.InstanceV1alpha1().MacOSInstances("acme").UpdateStatus(t.Context(), fresh, metav1.UpdateOptions{})
	require.NoError(t, err)
	claimed, err := f.starter.claim(t.Context(), fresh, "aW1hZ2U=", cached)
	require.NoError(t, err)
	assert.Equal(t, "aW1hZ2U=", claimed.Status.MachineID)
	assert.NotEmpty(t, claimed.Status.MACAddress)
}

// The machine identifier of an image may belong to another instance, which the registry notices if
// both were created at the same time.
func TestIdentityThatIsTaken(t *testing.T) {
	f := newFixture(t)
	image := &imagev1alpha1.MacOSImage{ObjectMeta: metav1.ObjectMeta{Name: "macos-26"}}
	taken := apierrors.NewConflict(instancev1alpha1.Resource("macosinstances"), "a", errors.New("taken"))
	report := func(imageID string, cause error) string {
		waiting := f.instance.DeepCopy()
		waiting.Status.MachineID = ""
		require.ErrorIs(t, f.starter.reportTaken(t.Context(), waiting, image, imageID, cause), cause, "the claim is repeated")
		current, err := f.macrack.InstanceV1alpha1().MacOSInstances("acme").Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		return current.Status.Message
	}
	assert.Empty(t, report("", taken), "a clone gets another identifier")
	assert.Empty(t, report("aW1hZ2U=", errors.New("no answer")))
	assert.Contains(t, report("aW1hZ2U=", taken), "Waiting for the machine identifier of MacOSImage macos-26")
}

// A clock that was set back does not delay a try.
func TestClockPutBack(t *testing.T) {
	f := newFixture(t)
	now := f.Clock.Now()
	assert.Equal(t, refusalPause, f.relauncher.nextTry(now.Add(24*time.Hour)))
	assert.Equal(t, time.Second, f.relauncher.nextTry(now.Add(time.Second-refusalPause)))
}

// The wait doubles with each launch, and a clock that was set back does not prolong it.
func TestLaunchWait(t *testing.T) {
	now := time.Now()
	var history startHistory
	for tries, want := range []time.Duration{0, launchPause, 2 * launchPause, 4 * launchPause} {
		launches, wait := history.launchWait(now)
		assert.Equal(t, tries, launches)
		assert.Equal(t, want, wait)
		_, wait = history.launchWait(now.Add(-time.Hour))
		assert.Equal(t, want, wait)
		history.launched(now)
	}
}

func TestNewMACAddress(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		address := newMACAddress()
		mac, err := net.ParseMAC(address)
		require.NoError(t, err)
		require.Len(t, mac, 6)
		require.Equal(t, byte(0b10), mac[0]&0b11, "%s is not a locally administered unicast address", address)
		require.False(t, seen[address])
		seen[address] = true
	}
}
