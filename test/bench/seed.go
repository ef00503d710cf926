package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster/etcd"

	clientv3 "go.etcd.io/etcd/client/v3"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/registry/values"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster"
)

const (
	tenant    = "bench"        // the namespace for writes
	listedIn  = "bench-listed" // the namespace for lists and watches
	className = "bench"
	imageName = "bench"
)

var storageSerializer = func() runtime.Serializer {
	info, ok := runtime.SerializerInfoForMediaType(apiserver.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("no serializer for protobuf")
	}
	return info.Serializer
}()

// stored encodes an object as macrack-apiserver stores it.
func stored(group schema.GroupVersion, obj runtime.Object) ([]byte, error) {
	codec := apiserver.Codecs.CodecForVersions(storageSerializer, storageSerializer, group, group)
	return runtime.Encode(values.NewCodec(schema.GroupResource{Group: group.Group}, codec), obj)
}

// storedTwin encodes an object as kube-apiserver stores its twin.
func storedTwin(kind string, obj runtime.Object) ([]byte, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	content["apiVersion"], content["kind"] = twinVersion, kind
	return json.Marshal(content)
}

func key(parts ...string) string { return "/registry/" + strings.Join(parts, "/") }

// etcdClient returns a client of the etcd at an address.
func (b *bench) etcdClient(server string) (*clientv3.Client, error) {
	access := b.cluster.MacrackEtcd()
	access.Servers = []string{server}
	return etcd.Connect(access)
}

// batch is the number of keys written at once; etcd accepts at most 128.
const batch = 100

type pair struct {
	key   string
	value []byte
}

func put(ctx context.Context, client *clientv3.Client, pairs ...pair) error {
	for len(pairs) > 0 {
		n := min(batch, len(pairs))
		var ops []clientv3.Op
		for _, p := range pairs[:n] {
			ops = append(ops, clientv3.OpPut(p.key, string(p.value)))
		}
		if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
			return err
		}
		pairs = pairs[n:]
	}
	return nil
}

// prepare creates the namespaces, the catalogue, and the twin's kinds.
func (b *bench) prepare(ctx context.Context) error {
	config, err := b.cluster.RESTConfig(cluster.Admin)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, name := range []string{tenant, listedIn} {
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	ours, err := b.etcdClient(b.cluster.MacrackEtcd().Servers[0])
	if err != nil {
		return err
	}
	kube, err := b.etcdClient(fmt.Sprintf("https://127.0.0.1:%d", b.cluster.Port("etcd")))
	if err != nil {
		return err
	}
	if b.ours, err = newSide("macrack", config, instancev1alpha1.SchemeGroupVersion.String(), ours); err != nil {
		return err
	}
	if b.twin, err = newSide("twin", config, twinVersion, kube); err != nil {
		return err
	}

	amount := func(cpu, memory, storage string) rackv1alpha1.MachineResources {
		return rackv1alpha1.MachineResources{CPU: scalar.MustParse(cpu), Memory: scalar.MustParse(memory), Storage: scalar.MustParse(storage)}
	}
	class, err := stored(rackv1alpha1.SchemeGroupVersion, &rackv1alpha1.MacNodeClass{ObjectMeta: newMeta("", className),
		Spec: rackv1alpha1.MacNodeClassSpec{Model: "Mac mini (2024)", Chip: "Apple M4", Capacity: amount("10", "24Gi", "512Gi"), HostReserved: amount("2", "4Gi", "64Gi")}})
	if err != nil {
		return err
	}
	small := instancev1alpha1.InstanceClassResources(amount("4", "8Gi", "64Gi"))
	instanceClass, err := stored(instancev1alpha1.SchemeGroupVersion, &instancev1alpha1.InstanceClass{ObjectMeta: newMeta("", className),
		Spec: instancev1alpha1.InstanceClassSpec{Resources: small}})
	if err != nil {
		return err
	}
	image, err := stored(imagev1alpha1.SchemeGroupVersion, &imagev1alpha1.MacOSImage{ObjectMeta: newMeta("", imageName),
		Status: imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady}})
	if err != nil {
		return err
	}
	err = put(ctx, ours,
		pair{key("rack.macrack.io", "macnodeclasses", className), class},
		pair{key("instance.macrack.io", "instanceclasses", className), instanceClass},
		pair{key("image.macrack.io", "macosimages", imageName), image})
	if err != nil {
		return err
	}
	return b.installTwin(ctx, config)
}

func newMeta(namespace, name string) metav1.ObjectMeta {
	now := metav1.Now()
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: uuid.NewUUID(), Generation: 1, CreationTimestamp: metav1.NewTime(now.Truncate(time.Second)),
	}
}

func macName(n int) string     { return fmt.Sprintf("bench-%04d", n) }
func serialOf(n int) string    { return fmt.Sprintf("BENCH%05d", n) }
func leaseName(n int) string   { return fmt.Sprintf("lease-%04d", n) }
func leaseUID(n int) types.UID { return types.UID(fmt.Sprintf("11111111-0000-4000-8000-%012d", n)) }

// newLease returns a lease bound to Mac n.
func newLease(namespace string, n int) *rackv1alpha1.MacNodeLease {
	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: newMeta(namespace, leaseName(n))}
	lease.UID = leaseUID(n)
	lease.Finalizers = []string{rules.FinalizerFloor}
	bound := metav1.NewTime(time.Now().Truncate(time.Second))
	floor := metav1.NewTime(bound.Add(rules.MinimumLeaseDuration))
	lease.Spec = rackv1alpha1.MacNodeLeaseSpec{ClassName: className, MinimumDuration: scalar.NewDuration(rules.MinimumLeaseDuration)}
	lease.Status = rackv1alpha1.MacNodeLeaseStatus{
		Phase: rackv1alpha1.MacNodeLeaseBound, BoundAt: &bound, EarliestReleaseAt: &floor, NodeName: macName(n), SerialNumber: serialOf(n),
	}
	return lease
}

// newMac returns Mac n, leased.
func newMac(namespace string, n int) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		ObjectMeta: newMeta("", macName(n)),
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: serialOf(n), ClassName: className, Location: rackv1alpha1.MacNodeLocation{Site: "lab", Rack: "r1", Shelf: "1"}},
		Status: rackv1alpha1.MacNodeStatus{
			Phase:    rackv1alpha1.MacNodeLeased,
			LeaseRef: &rackv1alpha1.LeaseReference{Namespace: namespace, Name: leaseName(n), UID: leaseUID(n)},
			Conditions: []metav1.Condition{
				{Type: rackv1alpha1.MacNodeReady, Status: metav1.ConditionTrue, Reason: "HeartbeatSeen", LastTransitionTime: metav1.Now()},
				{Type: rackv1alpha1.MacNodeSlotsHealthy, Status: metav1.ConditionTrue, Reason: "Probed", LastTransitionTime: metav1.Now()},
				{Type: rackv1alpha1.MacNodeStorageHealthy, Status: metav1.ConditionTrue, Reason: "Measured", LastTransitionTime: metav1.Now()},
			},
		},
	}
}

// newInstance returns a running instance as reported by its agent, with the managed fields of its
// writers. It has no owner, because the garbage collector would look for it.
func newInstance(namespace string, n, lease int) *instancev1alpha1.MacOSInstance {
	i := &instancev1alpha1.MacOSInstance{ObjectMeta: newMeta(namespace, fmt.Sprintf("vm-%05d", n))}
	i.Finalizers = []string{rules.FinalizerVM}
	i.Labels = map[string]string{"app": "ci", "team": "ios"}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	managed := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "instance.macrack.io/v1alpha1", Time: &now,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Subresource: subresource}
	}
	i.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kubectl-create", "", `{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:team":{}}},"f:spec":{"f:className":{},"f:imageName":{},"f:leaseName":{}}}`),
		managed("macrack-agent", "status", `{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"GuestReady\"}":{".":{},"f:lastTransitionTime":{},"f:reason":{},"f:status":{},"f:type":{}},"k:{\"type\":\"ImageReady\"}":{".":{},"f:lastTransitionTime":{},"f:reason":{},"f:status":{},"f:type":{}}},"f:imageDigest":{},"f:ipAddress":{".":{},"f:observedAt":{},"f:source":{},"f:value":{}},"f:macAddress":{},"f:machineID":{},"f:phase":{},"f:startedAt":{}}}`),
	}
	i.Spec = instancev1alpha1.MacOSInstanceSpec{
		LeaseName: leaseName(lease), ClassName: className, ImageName: imageName,
		Resources: instancev1alpha1.InstanceResources{Requests: instancev1alpha1.ResourceList{rules.ResourceMacOSVM: scalar.MustParse("1")}},
	}
	condition := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: now}
	}
	i.Status = instancev1alpha1.MacOSInstanceStatus{
		Phase: instancev1alpha1.MacOSInstanceRunning, NodeName: macName(lease), SerialNumber: serialOf(lease), PodName: i.Name,
		MachineID: fmt.Sprintf("AAAAAAAAAAAAAAAA%06dAA==", n), MACAddress: fmt.Sprintf("06:00:00:%02x:%02x:%02x", n>>16&0xff, n>>8&0xff, n&0xff),
		IPAddress:   &instancev1alpha1.IPAddress{Value: "192.168.64.2", Source: "GuestAgent", ObservedAt: &now},
		ImageDigest: "sha256:addf262bb9b4266c4dc45350116948f6555ec5c693093459db6fb9d7f75713fb", StartedAt: &now,
		Conditions: []metav1.Condition{
			condition(instancev1alpha1.MacOSInstanceScheduledCondition, "PodScheduled"),
			condition(instancev1alpha1.MacOSInstanceImageReady, "Cached"),
			condition(instancev1alpha1.MacOSInstanceGuestReady, "Answers"),
		},
	}
	return i
}
