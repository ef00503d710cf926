package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	controllers "macrack.io/macrack/pkg/controllers/macosinstance"
	"macrack.io/macrack/pkg/registry/instance/macosinstance"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster/etcd"
)

// The catalogue of the example.
const (
	scaleClass, scaleInstanceClass, scaleImage = "base", "small", "macos-26-xcode-26"
)

// seed writes Macs from a number up to another into both etcds, as if they had been leased and
// their instances had been started: MacNodes, leases, instances, Nodes and placeholder pods.
func (s *scale) seed(ctx context.Context, from, to int) error {
	namespace, err := s.kube.CoreV1().Namespaces().Get(ctx, fleetTenant, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ours, err := s.connect(s.cluster.MacrackEtcd().Servers[0])
	if err != nil {
		return err
	}
	defer ours.Close()
	kube, err := s.connect(fmt.Sprintf("https://127.0.0.1:%d", s.cluster.Port("etcd")))
	if err != nil {
		return err
	}
	defer kube.Close()
	// Nodes come before their pods, and leases before instances, or the garbage collector would
	// delete them.
	var nodes, pods, objects, instances []pair
	for n := from; n < to; n++ {
		mac, lease := scaleMac(n), newLease(fleetTenant, n)
		lease.Spec.ClassName, lease.Status.NamespaceUID = scaleClass, namespace.UID
		for k := range rules.MaxVMsPerMac {
			i := scaleInstance(n, k, namespace.UID)
			lease.Status.Instances = append(lease.Status.Instances, rackv1alpha1.LeaseSlot{Name: i.Name, UID: i.UID})
			value, err := stored(instancev1alpha1.SchemeGroupVersion, i)
			if err != nil {
				return err
			}
			instances = append(instances, pair{key("instance.macrack.io", "macosinstances", i.Namespace, i.Name), value})
			pod := scalePod(i)
			if value, err = json.Marshal(pod); err != nil {
				return err
			}
			pods = append(pods, pair{key("pods", pod.Namespace, pod.Name), value})
		}
		mac.Status.RunningVMs = rules.MaxVMsPerMac
		value, err := stored(rackv1alpha1.SchemeGroupVersion, mac)
		if err != nil {
			return err
		}
		objects = append(objects, pair{key("rack.macrack.io", "macnodes", mac.Name), value})
		if value, err = stored(rackv1alpha1.SchemeGroupVersion, lease); err != nil {
			return err
		}
		objects = append(objects, pair{key("rack.macrack.io", "macnodeleases", lease.Namespace, lease.Name), value})
		if value, err = json.Marshal(scaleNode(mac.Name)); err != nil {
			return err
		}
		nodes = append(nodes, pair{key("minions", mac.Name), value})
	}
	for _, written := range []struct {
		client *clientv3.Client
		pairs  []pair
	}{{kube, nodes}, {kube, pods}, {ours, objects}, {ours, instances}} {
		if err := putEach(ctx, written.client, written.pairs); err != nil {
			return err
		}
	}
	return nil
}

// putEach writes each key in a transaction of its own, because there are watches: one that is
// interrupted between two events of one revision resumes after the second.
func putEach(ctx context.Context, client *clientv3.Client, pairs []pair) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(64)
	for _, p := range pairs {
		group.Go(func() error { return put(ctx, client, p) })
	}
	return group.Wait()
}

func (s *scale) connect(server string) (*clientv3.Client, error) {
	access := s.cluster.MacrackEtcd()
	access.Servers = []string{server}
	return etcd.Connect(access)
}

// scaleMac returns Mac n, which becomes Ready by its first heartbeat.
func scaleMac(n int) *rackv1alpha1.MacNode {
	mac := newMac(fleetTenant, n)
	mac.Spec.ClassName = scaleClass
	meta.RemoveStatusCondition(&mac.Status.Conditions, rackv1alpha1.MacNodeReady)
	return mac
}

// scaleInstance returns the instance k of Mac n, running.
func scaleInstance(n, k int, namespace types.UID) *instancev1alpha1.MacOSInstance {
	i := newInstance(fleetTenant, rules.MaxVMsPerMac*n+k, n)
	i.Name = fleetInstance(n, k)
	i.Spec.ClassName, i.Spec.ImageName = scaleInstanceClass, scaleImage
	i.OwnerReferences = []metav1.OwnerReference{macosinstance.LeaseReference(i.Spec.LeaseName, leaseUID(n))}
	i.Status.NamespaceUID = namespace
	i.Status.PodName = controllers.PodName(i.Name)
	return i
}

// scalePod returns the placeholder pod of an instance, as kube-apiserver stores it.
func scalePod(i *instancev1alpha1.MacOSInstance) *corev1.Pod {
	pod := controllers.Placeholder(i, &imagev1alpha1.MacOSImage{})
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	made := newMeta(pod.Namespace, pod.Name)
	pod.UID, pod.CreationTimestamp = made.UID, made.CreationTimestamp
	pod.Spec.NodeName, pod.Spec.SchedulerName = i.Status.NodeName, corev1.DefaultSchedulerName
	now := metav1.Now()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now}
	for _, condition := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	return pod
}

// scaleNode returns the Node of a leased Mac, as kube-apiserver stores it.
func scaleNode(name string) *corev1.Node {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("10"), corev1.ResourceMemory: resource.MustParse("24Gi"), corev1.ResourcePods: resource.MustParse("16"),
		rules.ResourceMacOSVM: *resource.NewQuantity(rules.MaxVMsPerMac, resource.DecimalSI),
	}
	node := &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: newMeta("", name),
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{rules.TenantTaint(fleetTenant)}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}},
		},
	}
	node.Labels = map[string]string{corev1.LabelOSStable: "darwin", corev1.LabelArchStable: "arm64", corev1.LabelHostname: name, "macrack.io/mac": "true"}
	for condition, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: condition, Status: status, Reason: "AgentReady", LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	return node
}
