package ui

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/registry/values"
	"macrack.io/macrack/pkg/rules"
)

const (
	fleetSize     = 1000
	instanceCount = 2000
	perRack       = 40
	perShelf      = 2

	// hostile is what a page must show as text.
	hostile = `<img src=x onerror="window.pwned=1"><svg onload="window.pwned=1"></svg><script>window.pwned=1</script>` + "\u202egnp.exe"
)

var tenants = []string{"acme", "globex", "initech", "umbrella", "hooli", "stark"}

// A fleet writes objects as macrack-apiserver stores them.
type fleet struct {
	t    *testing.T
	etcd *clientv3.Client
	now  time.Time
}

func (f *fleet) put(group schema.GroupVersion, resource string, obj runtime.Object, meta metav1.Object) {
	f.t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(apiserver.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	require.True(f.t, ok)
	codec := apiserver.Codecs.CodecForVersions(info.Serializer, info.Serializer, group, group)
	value, err := runtime.Encode(values.NewCodec(schema.GroupResource{Group: group.Group}, codec), obj)
	require.NoError(f.t, err)
	key := "/registry/" + group.Group + "/" + resource + "/"
	if meta.GetNamespace() != "" {
		key += meta.GetNamespace() + "/"
	}
	_, err = f.etcd.Put(context.Background(), key+meta.GetName(), string(value))
	require.NoError(f.t, err)
}

func (f *fleet) putMac(mac *rackv1alpha1.MacNode) {
	f.put(rackv1alpha1.SchemeGroupVersion, "macnodes", mac, mac)
}

func (f *fleet) putLease(lease *rackv1alpha1.MacNodeLease) {
	f.put(rackv1alpha1.SchemeGroupVersion, "macnodeleases", lease, lease)
}

func (f *fleet) putInstance(i *instancev1alpha1.MacOSInstance) {
	f.put(instancev1alpha1.SchemeGroupVersion, "macosinstances", i, i)
}

func (f *fleet) at(d time.Duration) *metav1.Time {
	t := metav1.NewTime(f.now.Add(d).UTC().Truncate(time.Second))
	return &t
}

func (f *fleet) meta(namespace, name string, age time.Duration) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name), Generation: 1, CreationTimestamp: *f.at(-age)}
}

// phaseOf returns the phase of Mac n: most are leased, and each phase occurs.
func phaseOf(n int) rackv1alpha1.MacNodePhase {
	switch {
	case n%97 == 13:
		return rackv1alpha1.MacNodeQuarantined
	case n%61 == 17:
		return rackv1alpha1.MacNodeOffline
	case n%53 == 11:
		return rackv1alpha1.MacNodeReleasing
	case n%101 == 29:
		return rackv1alpha1.MacNodeMaintenance
	case n == 999:
		return rackv1alpha1.MacNodePending
	case n%9 == 4:
		return rackv1alpha1.MacNodeAvailable
	}
	return rackv1alpha1.MacNodeLeased
}

func isHeld(n int) bool    { return n%23 == 7 }
func macName(n int) string { return fmt.Sprintf("mac-%04d", n) }
func hasLease(p rackv1alpha1.MacNodePhase) bool {
	return p == rackv1alpha1.MacNodeLeased || p == rackv1alpha1.MacNodeReleasing || p == rackv1alpha1.MacNodeOffline
}

func condition(kind string, status metav1.ConditionStatus, reason, message string, since *metav1.Time) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: *since}
}

// seed writes the fleet.
func (f *fleet) seed() {
	instances := 0
	for n := range fleetSize {
		instances += f.seedMac(n)
	}
	for n := instances; n < instanceCount; n++ { // finished ones, and a queue
		f.putInstance(f.otherInstance(n, n-instances))
	}
	for n := range 12 {
		lease := &rackv1alpha1.MacNodeLease{ObjectMeta: f.meta(tenants[n%len(tenants)], fmt.Sprintf("waiting-%02d", n), time.Duration(n+1)*7*time.Minute)}
		lease.Spec.ClassName = "studio"
		message := "0 of 40 Macs of class studio are available: 38 Leased, 2 Quarantined; the earliest floor is 14:30 UTC"
		if n == 0 {
			message = hostile
		}
		lease.Status = rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending, NamespaceUID: types.UID("namespace-" + lease.Namespace), Conditions: []metav1.Condition{
			condition(rackv1alpha1.MacNodeLeaseConditionBound, metav1.ConditionFalse, rackv1alpha1.ReasonNoMacAvailable, message, f.at(0))}}
		f.putLease(lease)
	}
	f.seedCatalogue()
}

func (f *fleet) mac(n int) *rackv1alpha1.MacNode {
	phase := phaseOf(n)
	mac := &rackv1alpha1.MacNode{ObjectMeta: f.meta("", macName(n), 90*24*time.Hour)}
	site := "ams1"
	if n >= fleetSize/2 {
		site = "fra2"
	}
	mac.Spec = rackv1alpha1.MacNodeSpec{SerialNumber: fmt.Sprintf("C07%07d", n), ClassName: className(n),
		Location: rackv1alpha1.MacNodeLocation{Site: site, Rack: fmt.Sprintf("r%d", n/perRack+1), Shelf: fmt.Sprint(n%perRack/perShelf + 1)}}
	mac.Status.Phase = phase
	mac.Status.Hardware = &rackv1alpha1.MacNodeHardware{ModelIdentifier: "Mac16,10", SerialNumber: mac.Spec.SerialNumber, CPU: scalar.MustParse("10"), Memory: scalar.MustParse("24Gi"),
		Storage: scalar.MustParse("512Gi"), FreeStorage: scalar.MustParse("187Gi"), MacOSVersion: "26.1", AgentVersion: "v0.1.0"}
	mac.Status.Images = []rackv1alpha1.CachedImage{{Name: "macos-26-xcode-26", Digest: "sha256:aa", SizeBytes: 62 << 30, LastUsedAt: f.at(-time.Hour)}}
	if n%3 == 0 {
		mac.Status.Images = append(mac.Status.Images, rackv1alpha1.CachedImage{Name: "macos-15-xcode-16", SizeBytes: 58 << 30, LastUsedAt: f.at(-50 * time.Hour)})
	}
	online := metav1.ConditionTrue
	if phase == rackv1alpha1.MacNodeOffline {
		online = metav1.ConditionFalse
	}
	mac.Status.Conditions = []metav1.Condition{
		condition(rackv1alpha1.MacNodeReady, online, "HeartbeatSeen", "", f.at(-time.Duration(n%40+1)*time.Hour)),
		condition(rackv1alpha1.MacNodeSlotsHealthy, metav1.ConditionTrue, "Probed", "", f.at(-40*time.Hour)),
		condition(rackv1alpha1.MacNodeStorageHealthy, metav1.ConditionTrue, "Measured", "", f.at(-40*time.Hour)),
	}
	if phase == rackv1alpha1.MacNodeQuarantined {
		mac.Status.Quarantine = &rackv1alpha1.Quarantine{Reason: rackv1alpha1.ReasonKernelQuotaStuck, Message: "the kernel allows 1 of 2 virtual machines; reboot the Mac", Since: *f.at(-2 * time.Hour)}
	}
	return mac
}

func className(n int) string {
	if n%5 == 0 {
		return "pro"
	}
	return "base"
}

// seedMac writes Mac n, its lease and its instances, and returns the number of instances.
func (f *fleet) seedMac(n int) int {
	mac := f.mac(n)
	if !hasLease(mac.Status.Phase) {
		f.putMac(mac)
		return 0
	}
	lease := f.lease(n, mac)
	count := rules.MaxVMsPerMac
	if n%7 == 3 || mac.Status.Phase == rackv1alpha1.MacNodeReleasing {
		count = n % 2
	}
	for k := range count {
		i := f.instance(n, k, lease)
		lease.Status.Instances = append(lease.Status.Instances, rackv1alpha1.LeaseSlot{Name: i.Name, UID: i.UID})
		f.putInstance(i)
	}
	mac.Status.RunningVMs = int32(count)
	mac.Status.EarliestReleaseAt = lease.Status.EarliestReleaseAt
	mac.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID, BoundAt: lease.Status.BoundAt, HeldAt: lease.Status.HeldAt}
	f.putMac(mac)
	f.putLease(lease)
	return count
}

func (f *fleet) lease(n int, mac *rackv1alpha1.MacNode) *rackv1alpha1.MacNodeLease {
	age := time.Duration(n*37%2800) * time.Minute
	tenant := tenants[n/9%len(tenants)]
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: f.meta(tenant, fmt.Sprintf("ci-%04d", n), age+time.Minute)}
	lease.Finalizers = []string{rules.FinalizerFloor}
	lease.Spec = rackv1alpha1.MacNodeLeaseSpec{ClassName: mac.Spec.ClassName, MinimumDuration: scalar.NewDuration(rules.MinimumLeaseDuration)}
	lease.Status = rackv1alpha1.MacNodeLeaseStatus{
		Phase: rackv1alpha1.MacNodeLeaseBound, BoundAt: f.at(-age), EarliestReleaseAt: f.at(-age + rules.MinimumLeaseDuration),
		NodeName: mac.Name, SerialNumber: mac.Spec.SerialNumber, NamespaceUID: types.UID("namespace-" + tenant),
	}
	if mac.Status.Phase == rackv1alpha1.MacNodeReleasing {
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		lease.Status.Conditions = []metav1.Condition{condition(rackv1alpha1.MacNodeLeaseConditionReconciling, metav1.ConditionTrue, "Scrubbing", "the agent erases the data of the tenant", f.at(-time.Minute))}
		lease.Status.BoundAt, lease.Status.EarliestReleaseAt = f.at(-25*time.Hour), f.at(-time.Hour)
	} else if isHeld(n) {
		lease.Status.Phase, lease.Status.HeldAt = rackv1alpha1.MacNodeLeaseHeld, f.at(-age%(12*time.Hour)/2)
		lease.Status.BoundAt, lease.Status.EarliestReleaseAt = f.at(-age%(12*time.Hour)), f.at(-age%(12*time.Hour)+rules.MinimumLeaseDuration)
		deleted := lease.Status.HeldAt
		lease.DeletionTimestamp = deleted
	}
	return lease
}

func (f *fleet) instance(n, k int, lease *rackv1alpha1.MacNodeLease) *instancev1alpha1.MacOSInstance {
	i := &instancev1alpha1.MacOSInstance{ObjectMeta: f.meta(lease.Namespace, fmt.Sprintf("vm-%04d-%d", n, k), time.Hour)}
	i.Finalizers = []string{rules.FinalizerVM}
	i.Spec = instancev1alpha1.MacOSInstanceSpec{LeaseName: lease.Name, ClassName: "small", ImageName: "macos-26-xcode-26"}
	started := lease.Status.BoundAt.Add(time.Duration(k*90+5) * time.Minute)
	if started.After(f.now) {
		started = f.now.Add(-time.Minute)
	}
	startedAt := metav1.NewTime(started.Truncate(time.Second))
	i.Status = instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceRunning, NodeName: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber,
		StartedAt: &startedAt, NamespaceUID: lease.Status.NamespaceUID, MachineID: string(i.UID), MACAddress: fmt.Sprintf("06:00:00:%02x:%02x:%02x", n>>8, n&0xff, k)}
	return i
}

// otherInstance returns an instance without a slot: stopped, or in the queue.
func (f *fleet) otherInstance(n, k int) *instancev1alpha1.MacOSInstance {
	tenant := tenants[n%len(tenants)]
	i := &instancev1alpha1.MacOSInstance{ObjectMeta: f.meta(tenant, fmt.Sprintf("job-%04d", n), time.Duration(k%50+1)*time.Minute)}
	i.Spec = instancev1alpha1.MacOSInstanceSpec{LeaseName: "earlier", ClassName: "small", ImageName: "macos-26-xcode-26"}
	i.Status = instancev1alpha1.MacOSInstanceStatus{Phase: instancev1alpha1.MacOSInstanceStopped, NamespaceUID: types.UID("namespace-" + tenant), StartedAt: f.at(-3 * time.Hour), StoppedAt: f.at(-2 * time.Hour)}
	switch {
	case k == 0:
		i.Status.Phase, i.Status.Message, i.Status.StoppedAt = instancev1alpha1.MacOSInstancePending, hostile, nil
	case k < 8:
		i.Spec.ImageName = "macos-15-xcode-16"
		i.Status.Phase, i.Status.NodeName, i.Status.StoppedAt = instancev1alpha1.MacOSInstancePulling, macName(40*k), nil
		i.Status.Message = fmt.Sprintf("Pulling image macos-15-xcode-16: %d%% of 58 GiB", 11*k)
	case k < 14:
		i.Status.Phase, i.Status.Message, i.Status.StoppedAt = instancev1alpha1.MacOSInstanceScheduled, "waits for the first instance of the Mac to start", nil
	}
	return i
}

func (f *fleet) seedCatalogue() {
	for name, total := range map[string]int32{"base": 800, "pro": 200} {
		class := &rackv1alpha1.MacNodeClass{ObjectMeta: f.meta("", name, 90*24*time.Hour)}
		class.Spec = rackv1alpha1.MacNodeClassSpec{Model: "Mac mini (2024)", Chip: "Apple M4", SKU: "mac-mini-" + name}
		class.Status = rackv1alpha1.MacNodeClassStatus{Total: total, Available: total / 10, Occupied: total * 87 / 100, Leased: total * 83 / 100, Held: total * 4 / 100, Offline: total * 2 / 100, Quarantined: total / 100}
		f.put(rackv1alpha1.SchemeGroupVersion, "macnodeclasses", class, class)
	}
	for name, content := range map[string][2]string{"macos-26-xcode-26": {"26.1", "26.1"}, "macos-15-xcode-16": {"15.7", "16.4"}, "macos-26-plain": {"26.1", ""}} {
		image := &imagev1alpha1.MacOSImage{ObjectMeta: f.meta("", name, 30*24*time.Hour)}
		image.Spec.Contents = []imagev1alpha1.ImageContent{{Name: imagev1alpha1.ContentMacOS, Version: content[0]}, {Name: imagev1alpha1.ContentGuestAgent, Version: "0.1.0"}}
		if content[1] != "" {
			image.Spec.Contents = append(image.Spec.Contents, imagev1alpha1.ImageContent{Name: imagev1alpha1.ContentXcode, Version: content[1]})
		}
		image.Status = imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady, SizeBytes: 60 << 30}
		switch name {
		case "macos-26-plain":
			image.Status.Phase, image.Status.Message, image.Status.SizeBytes = imagev1alpha1.MacOSImageFailed, "the registry has no such manifest", 0
		case "macos-26-xcode-26":
			image.Status.ReplicatedOn = serials(1)
		default:
			image.Status.ReplicatedOn = serials(3)
		}
		f.put(imagev1alpha1.SchemeGroupVersion, "macosimages", image, image)
	}
}

func serials(step int) (found []string) {
	for n := 0; n < fleetSize; n += step {
		found = append(found, fmt.Sprintf("C07%07d", n))
	}
	return found
}
