package console

import (
	"cmp"
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/rules"
)

// Mac is a Mac in the page.
type Mac struct {
	Name   string `json:"name"`
	Serial string `json:"serial"`
	Class  string `json:"class"`
	Site   string `json:"site"`
	Rack   string `json:"rack"`
	Shelf  string `json:"shelf"`
	// Phase is that of the MacNode, or Held if its lease is.
	Phase  string `json:"phase"`
	Tenant string `json:"tenant,omitempty"`
	Lease  string `json:"lease,omitempty"`
	Floor  string `json:"floor,omitempty"`
	VMs    int32  `json:"vms"`
	// Reason and Message are those of the quarantine.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Heartbeat is the state of the agent's heartbeats, True, False or Unknown; HeartbeatSince is
	// when it began.
	Heartbeat      string   `json:"heartbeat,omitempty"`
	HeartbeatSince string   `json:"heartbeatSince,omitempty"`
	Images         []string `json:"images,omitempty"`
}

// Lease is a lease in the page.
type Lease struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Class     string   `json:"class"`
	Node      string   `json:"node,omitempty"`
	Serial    string   `json:"serial,omitempty"`
	Phase     string   `json:"phase"`
	Created   string   `json:"created,omitempty"`
	Bound     string   `json:"bound,omitempty"`
	Floor     string   `json:"floor,omitempty"`
	Held      string   `json:"held,omitempty"`
	Expires   string   `json:"expires,omitempty"`
	Released  string   `json:"released,omitempty"`
	Slots     []string `json:"slots,omitempty"`
	// Reason and Message state what the lease waits for.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// MacPhase is what the tenant may know of the phase of the Mac.
	MacPhase string `json:"macPhase,omitempty"`
}

// Instance is an instance in the page.
type Instance struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Lease     string `json:"lease"`
	Class     string `json:"class"`
	Image     string `json:"image"`
	Node      string `json:"node,omitempty"`
	Phase     string `json:"phase"`
	Created   string `json:"created,omitempty"`
	Started   string `json:"started,omitempty"`
	Stopped   string `json:"stopped,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Image is an image in the page.
type Image struct {
	Name     string            `json:"name"`
	Contents map[string]string `json:"contents"`
	Phase    string            `json:"phase"`
	Message  string            `json:"message,omitempty"`
	Size     int64             `json:"size,omitempty"`
	// Replicas is the number of Macs that have the image.
	Replicas int `json:"replicas"`
}

// Class is a class of Macs in the page.
type Class struct {
	Name        string `json:"name"`
	Model       string `json:"model"`
	Chip        string `json:"chip"`
	SKU         string `json:"sku,omitempty"`
	Total       int32  `json:"total"`
	Available   int32  `json:"available"`
	Occupied    int32  `json:"occupied"`
	Held        int32  `json:"held"`
	Quarantined int32  `json:"quarantined"`
	Offline     int32  `json:"offline"`
}

// viewOf returns what the page knows about an object.
func viewOf(obj runtime.Object) json.RawMessage {
	var view any
	switch obj := obj.(type) {
	case *rackv1alpha1.MacNode:
		view = newMac(obj)
	case *rackv1alpha1.MacNodeLease:
		view = newLease(obj)
	case *instancev1alpha1.MacOSInstance:
		view = newInstance(obj)
	case *imagev1alpha1.MacOSImage:
		view = newImage(obj)
	case *rackv1alpha1.MacNodeClass:
		s := obj.Status
		view = Class{Name: obj.Name, Model: obj.Spec.Model, Chip: obj.Spec.Chip, SKU: obj.Spec.SKU, Total: s.Total, Available: s.Available,
			Occupied: s.Occupied, Held: s.Held, Quarantined: s.Quarantined, Offline: s.Offline}
	}
	data, err := json.Marshal(view)
	if err != nil {
		return nil
	}
	return data
}

func newMac(node *rackv1alpha1.MacNode) Mac {
	mac := Mac{
		Name: node.Name, Serial: node.Spec.SerialNumber, Class: node.Spec.ClassName,
		Site: node.Spec.Location.Site, Rack: node.Spec.Location.Rack, Shelf: node.Spec.Location.Shelf,
		Phase: cmp.Or(string(node.Status.Phase), string(rackv1alpha1.MacNodePending)),
		Floor: timeOf(node.Status.EarliestReleaseAt), VMs: node.Status.RunningVMs,
	}
	if ref := node.Status.LeaseRef; ref != nil {
		mac.Tenant, mac.Lease = ref.Namespace, ref.Name
		if ref.HeldAt != nil && node.Status.Phase == rackv1alpha1.MacNodeLeased {
			mac.Phase = string(rackv1alpha1.MacNodeLeaseHeld)
		}
	}
	if q := node.Status.Quarantine; q != nil {
		mac.Reason, mac.Message = q.Reason, q.Message
	}
	if c := meta.FindStatusCondition(node.Status.Conditions, rackv1alpha1.MacNodeReady); c != nil {
		mac.Heartbeat, mac.HeartbeatSince = string(c.Status), timeOf(&c.LastTransitionTime)
	}
	for _, image := range node.Status.Images {
		mac.Images = append(mac.Images, image.Name)
	}
	return mac
}

func newLease(lease *rackv1alpha1.MacNodeLease) Lease {
	floor := rules.LeaseFloor(lease.Status.BoundAt, lease.Spec.MinimumDuration.Value(), lease.Status.EarliestReleaseAt)
	l := Lease{
		Namespace: lease.Namespace, Name: lease.Name, Class: lease.Spec.ClassName, Node: lease.Status.NodeName, Serial: lease.Status.SerialNumber,
		Phase:   cmp.Or(string(lease.Status.Phase), string(rackv1alpha1.MacNodeLeasePending)),
		Created: timeOf(&lease.CreationTimestamp), Bound: timeOf(lease.Status.BoundAt), Floor: timeOf(&metav1.Time{Time: floor}),
		Expires: timeOf(&metav1.Time{Time: rules.LeaseExpiry(lease.Status.BoundAt, lease.Spec.ExpireAfter.Value(), floor)}),
		Held:    timeOf(lease.Status.HeldAt), Released: timeOf(lease.Status.ReleasedAt), MacPhase: macPhase(lease),
	}
	for _, slot := range lease.Status.Instances {
		l.Slots = append(l.Slots, slot.Name)
	}
	blocking := []string{rackv1alpha1.MacNodeLeaseConditionStalled, rackv1alpha1.MacNodeLeaseConditionReconciling}
	if l.Phase == string(rackv1alpha1.MacNodeLeasePending) {
		blocking = []string{rackv1alpha1.MacNodeLeaseConditionBound}
	}
	l.Reason, l.Message = explain(lease.Status.Conditions, blocking...)
	return l
}

// macPhase returns what the tenant of a lease may know of the phase of its Mac.
func macPhase(lease *rackv1alpha1.MacNodeLease) string {
	c := meta.FindStatusCondition(lease.Status.Conditions, rackv1alpha1.MacNodeLeaseConditionMacReady)
	switch {
	case c != nil && c.Status == metav1.ConditionFalse && c.Reason == rackv1alpha1.ReasonMacOffline:
		return string(rackv1alpha1.MacNodeOffline)
	case c != nil && c.Status == metav1.ConditionFalse:
		return string(rackv1alpha1.MacNodeQuarantined)
	case lease.Status.Phase == rackv1alpha1.MacNodeLeaseBound:
		return string(rackv1alpha1.MacNodeLeased)
	}
	return string(lease.Status.Phase)
}

func newInstance(instance *instancev1alpha1.MacOSInstance) Instance {
	i := Instance{
		Namespace: instance.Namespace, Name: instance.Name, Lease: instance.Spec.LeaseName, Class: instance.Spec.ClassName, Image: instance.Spec.ImageName,
		Node: instance.Status.NodeName, Phase: cmp.Or(string(instance.Status.Phase), string(instancev1alpha1.MacOSInstancePending)),
		Created: timeOf(&instance.CreationTimestamp), Started: timeOf(instance.Status.StartedAt), Stopped: timeOf(instance.Status.StoppedAt),
	}
	reason, message := explain(instance.Status.Conditions, instancev1alpha1.MacOSInstanceStalled, instancev1alpha1.MacOSInstanceReconciling)
	i.Reason, i.Message = reason, cmp.Or(instance.Status.Message, message)
	return i
}

func newImage(image *imagev1alpha1.MacOSImage) Image {
	i := Image{
		Name: image.Name, Contents: map[string]string{}, Phase: cmp.Or(string(image.Status.Phase), string(imagev1alpha1.MacOSImagePending)),
		Message: image.Status.Message, Size: image.Status.SizeBytes, Replicas: len(image.Status.ReplicatedOn),
	}
	for _, content := range image.Spec.Contents {
		i.Contents[content.Name] = content.Version
	}
	return i
}

// explain returns reason and message of the first condition that exists.
func explain(conditions []metav1.Condition, types ...string) (reason, message string) {
	for _, name := range types {
		if c := meta.FindStatusCondition(conditions, name); c != nil {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

func timeOf(t *metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return cmdutil.Time(t.Time)
}
