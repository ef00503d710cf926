// Package node maintains the Mac's Kubernetes Node with the virtual-kubelet library: it registers
// the Node, sends heartbeats, and accepts pods.
package node

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/rules"
)

// maxPods leaves room for a placeholder pod per slot and for terminating pods.
const maxPods = 16

// LabelMac is the label of every Node that is a Mac.
const LabelMac = "macrack.io/mac"

// Description describes a Node.
type Description struct {
	Name string
	// Address is the IP address of the agent in the cluster; may be empty.
	Address string
	// Port is the port of the agent's kubelet-style API; 0 without one.
	Port int32
	// Version is the agent's version.
	Version string
	Host    host.Info
}

// object returns the Node as registered. It has the taint only at registration: an agent neither
// knows nor may change the lease of its Mac.
func (d *Description) object(now metav1.Time) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(d.Host.CPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(d.Host.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(d.Host.Storage, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
		rules.ResourceMacOSVM:           *resource.NewQuantity(rules.MaxVMsPerMac, resource.DecimalSI),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: d.Name,
			Labels: map[string]string{
				corev1.LabelOSStable:   "darwin",
				corev1.LabelArchStable: "arm64",
				corev1.LabelHostname:   d.Name,
				LabelMac:               "true",
			},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{rules.UnleasedTaint()}},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: maps.Clone(capacity),
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: d.Name}},
			NodeInfo: corev1.NodeSystemInfo{
				BootID:                  d.Host.BootID,
				MachineID:               d.Host.SerialNumber,
				SystemUUID:              d.Host.SerialNumber,
				OSImage:                 "macOS " + d.Host.MacOSVersion,
				OperatingSystem:         "darwin",
				Architecture:            "arm64",
				KubeletVersion:          d.Version,
				ContainerRuntimeVersion: "macrack://" + d.Version,
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: d.Port}},
		},
	}
	if d.Address != "" {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: d.Address})
	}
	condition := func(t corev1.NodeConditionType, status corev1.ConditionStatus, message string) {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: t, Status: status, Reason: "AgentReady", Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	condition(corev1.NodeReady, corev1.ConditionTrue, "the agent is running")
	condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "virtual machines have fixed memory")
	condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "see StorageHealthy of the MacNode")
	condition(corev1.NodePIDPressure, corev1.ConditionFalse, "virtual machines are one process each")
	return node
}
