package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/registrytest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fleet is a server with a catalogue, and its clients.
type fleet struct {
	t     testing.TB
	clock *clocktesting.FakeClock
	etcd  *registrytest.Etcd
	// servers are replicas on one etcd.
	servers []*registrytest.Server

	admin, controllers versioned.Interface
	acme, globex       versioned.Interface
}

func newFleet(t testing.TB, replicas int, change ...func(*apiserver.Options)) *fleet {
	t.Helper()
	f := &fleet{t: t, clock: clocktesting.NewFakeClock(noon), etcd: registrytest.StartEtcd(t)}
	for range replicas {
		f.servers = append(f.servers, registrytest.StartServer(t, f.etcd, f.clock, change...))
	}
	s := f.servers[0]
	f.admin = s.Client(t, "admin", "system:masters")
	f.controllers = s.Client(t, "system:serviceaccount:macrack-system:macrack-controllers", "system:serviceaccounts")
	f.acme, f.globex = s.Client(t, "acme", "system:authenticated"), s.Client(t, "globex", "system:authenticated")

	ctx := t.Context()
	_, err := f.admin.RackV1alpha1().MacNodeClasses().Create(ctx, &rackv1alpha1.MacNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "base"},
		Spec:       baseClass(),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for name, size := range map[string][2]string{"small": {"4", "8Gi"}, "large": {"8", "16Gi"}, "giant": {"8", "64Gi"}} {
		_, err := f.admin.InstanceV1alpha1().InstanceClasses().Create(ctx, &instancev1alpha1.InstanceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: instancev1alpha1.InstanceClassSpec{Resources: instancev1alpha1.InstanceClassResources{
				CPU: scalar.MustParse(size[0]), Memory: scalar.MustParse(size[1]), Storage: scalar.MustParse("64Gi"),
			}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	f.image("macos-26", true)
	return f
}

func baseClass() rackv1alpha1.MacNodeClassSpec {
	return rackv1alpha1.MacNodeClassSpec{
		Model: "Mac mini (2024)", ModelIdentifiers: []string{"Mac16,10"}, Chip: "Apple M4",
		Capacity:     rackv1alpha1.MachineResources{CPU: scalar.MustParse("10"), Memory: scalar.MustParse("24Gi"), Storage: scalar.MustParse("512Gi")},
		HostReserved: rackv1alpha1.MachineResources{CPU: scalar.MustParse("2"), Memory: scalar.MustParse("4Gi"), Storage: scalar.MustParse("64Gi")},
		SKU:          "mac-m4-24h",
	}
}

// image adds an image to the catalogue.
func (f *fleet) image(name string, ready bool) {
	f.t.Helper()
	images := f.admin.ImageV1alpha1().MacOSImages()
	image, err := images.Create(f.t.Context(), &imagev1alpha1.MacOSImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: imagev1alpha1.MacOSImageSpec{
			Contents: []imagev1alpha1.ImageContent{{Name: "macOS", Version: "26.1", Build: "25B78"}, {Name: "guest-agent", Version: "1.0"}},
			Source:   imagev1alpha1.ImageSource{Reference: "registry.example.com/macos:26.1", Digest: "sha256:" + fmt.Sprintf("%064x", 26)},
			DiskSize: scalar.MustParse("60Gi"),
		},
	}, metav1.CreateOptions{})
	require.NoError(f.t, err)
	if ready {
		image.Status.Phase, image.Status.Digest = imagev1alpha1.MacOSImageReady, image.Spec.Source.Digest
		_, err = images.UpdateStatus(f.t.Context(), image, metav1.UpdateOptions{})
		require.NoError(f.t, err)
	}
}

// mac adds a Mac to the fleet, with a first report of its agent.
func (f *fleet) mac(name, serial string) {
	f.t.Helper()
	_, err := f.admin.RackV1alpha1().MacNodes().Create(f.t.Context(), &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: serial, ClassName: "base"},
	}, metav1.CreateOptions{})
	require.NoError(f.t, err)
	f.report(name, func(status *rackv1alpha1.MacNodeStatus) {
		status.BootID = "boot-1"
		status.Hardware = &rackv1alpha1.MacNodeHardware{ModelIdentifier: "Mac16,10", SerialNumber: serial}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionTrue, Reason: "Healthy"})
	})
}

// agent returns a client of a Mac's agent.
func (f *fleet) agent(node string) versioned.Interface {
	return f.servers[0].Client(f.t, "system:node:"+node, "system:nodes", "system:authenticated")
}

// setTime sets the clock, and waits until every replica has left that time in etcd: a floor passes
// only by the clocks of all replicas.
func (f *fleet) setTime(now time.Time) {
	f.t.Helper()
	f.clock.SetTime(now)
	require.Eventually(f.t, func() bool {
		readings := f.readings()
		for _, r := range readings {
			if r.Time.Before(now) {
				return false
			}
		}
		return len(readings) >= len(f.servers)
	}, 2*time.Minute, 10*time.Millisecond)
}

// readings returns the times that the replicas have left in etcd.
func (f *fleet) readings() map[string]struct{ Time time.Time } {
	f.t.Helper()
	resp, err := f.etcd.Client.Get(f.t.Context(), registrytest.ClockKey)
	require.NoError(f.t, err)
	var readings map[string]struct{ Time time.Time }
	for _, kv := range resp.Kvs {
		require.NoError(f.t, json.Unmarshal(kv.Value, &readings))
	}
	return readings
}

// report writes the status of a MacNode as its agent.
func (f *fleet) report(name string, change func(*rackv1alpha1.MacNodeStatus)) *rackv1alpha1.MacNode {
	f.t.Helper()
	nodes := f.agent(name).RackV1alpha1().MacNodes()
	node, err := nodes.Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	change(&node.Status)
	node, err = nodes.UpdateStatus(f.t.Context(), node, metav1.UpdateOptions{})
	require.NoError(f.t, err)
	return node
}

func (f *fleet) node(name string) *rackv1alpha1.MacNode {
	f.t.Helper()
	node, err := f.admin.RackV1alpha1().MacNodes().Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	return node
}

func newLease(namespace, name string) *rackv1alpha1.MacNodeLease {
	return &rackv1alpha1.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"}}
}

// lease creates a lease and binds it to a Mac.
func (f *fleet) lease(namespace, name, node string) *rackv1alpha1.MacNodeLease {
	f.t.Helper()
	_, err := f.acme.RackV1alpha1().MacNodeLeases(namespace).Create(f.t.Context(), newLease(namespace, name), metav1.CreateOptions{})
	require.NoError(f.t, err)
	require.NoError(f.t, f.bind(namespace, name, node))
	return f.getLease(namespace, name)
}

func (f *fleet) bind(namespace, name, node string) error {
	_, err := f.controllers.RackV1alpha1().MacNodeLeases(namespace).Bind(f.t.Context(), name, &rackv1alpha1.MacNodeLeaseBinding{NodeName: node}, metav1.CreateOptions{})
	return err
}

func (f *fleet) getLease(namespace, name string) *rackv1alpha1.MacNodeLease {
	f.t.Helper()
	lease, err := f.admin.RackV1alpha1().MacNodeLeases(namespace).Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	return lease
}

func (f *fleet) deleteLease(namespace, name string) {
	f.t.Helper()
	require.NoError(f.t, f.acme.RackV1alpha1().MacNodeLeases(namespace).Delete(f.t.Context(), name, metav1.DeleteOptions{}))
}

func newInstance(namespace, name, lease string) *instancev1alpha1.MacOSInstance {
	return &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: lease, ClassName: "small", ImageName: "macos-26"},
	}
}

func (f *fleet) create(ctx context.Context, i *instancev1alpha1.MacOSInstance) error {
	_, err := f.acme.InstanceV1alpha1().MacOSInstances(i.Namespace).Create(ctx, i, metav1.CreateOptions{})
	return err
}

func (f *fleet) getInstance(namespace, name string) *instancev1alpha1.MacOSInstance {
	f.t.Helper()
	i, err := f.admin.InstanceV1alpha1().MacOSInstances(namespace).Get(f.t.Context(), name, metav1.GetOptions{})
	require.NoError(f.t, err)
	return i
}

// write writes the status of an instance as the given user.
func (f *fleet) write(as versioned.Interface, namespace, name string, change func(*instancev1alpha1.MacOSInstanceStatus)) error {
	f.t.Helper()
	i := f.getInstance(namespace, name)
	change(&i.Status)
	_, err := as.InstanceV1alpha1().MacOSInstances(namespace).UpdateStatus(f.t.Context(), i, metav1.UpdateOptions{})
	return err
}

// start reports as the agent of a Mac that an instance runs, with the identity number n.
func (f *fleet) start(node, namespace, name string, n int) {
	f.t.Helper()
	require.NoError(f.t, f.write(f.agent(node), namespace, name, func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase = instancev1alpha1.MacOSInstanceStarting
		status.MachineID, status.MACAddress = identityOf(n)
	}))
	require.NoError(f.t, f.write(f.agent(node), namespace, name, func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase = instancev1alpha1.MacOSInstanceRunning
	}))
}

func identityOf(n int) (machineID, mac string) {
	return fmt.Sprintf("bWFjaGluZS0%05d", n), fmt.Sprintf("02:00:00:00:%02x:%02x", n/256, n%256)
}

// stopped reports as the agent of a Mac that an instance has stopped.
func (f *fleet) stopped(node, namespace, name string) {
	f.t.Helper()
	require.NoError(f.t, f.write(f.agent(node), namespace, name, func(status *instancev1alpha1.MacOSInstanceStatus) {
		status.Phase = instancev1alpha1.MacOSInstanceStopped
	}))
}

// scrub reports as the agent of a Mac that nothing of its lease is left.
func (f *fleet) scrub(name string) {
	f.t.Helper()
	f.report(name, func(status *rackv1alpha1.MacNodeStatus) {
		status.Scrub = &rackv1alpha1.ScrubReport{LeaseUID: status.LeaseRef.UID, FinishedAt: metav1.NewTime(f.clock.Now())}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: rackv1alpha1.MacNodeScrubbed, Status: metav1.ConditionTrue, Reason: "Scrubbed"})
	})
}

func (f *fleet) release(namespace, name string, taints ...string) error {
	_, err := f.controllers.RackV1alpha1().MacNodeLeases(namespace).Release(f.t.Context(), name, &rackv1alpha1.MacNodeLeaseRelease{NodeTaints: taints}, metav1.CreateOptions{})
	return err
}

// records returns the types of a namespace's records, in sequence.
func (f *fleet) records(namespace string) []rackv1alpha1.AuditRecord {
	f.t.Helper()
	list, err := f.admin.RackV1alpha1().AuditRecords(namespace).List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	return list.Items
}

func typesOf(records []rackv1alpha1.AuditRecord) (types []rackv1alpha1.AuditRecordType) {
	for _, r := range records {
		types = append(types, r.Type)
	}
	return types
}
