// Package controllerrestriction keeps macrack-controllers from saying what only a Mac's agent can know: what the Mac
// is, that it is healthy or scrubbed, and that a virtual machine runs. What the controllers may do at all is RBAC's to
// grant, and what of it is right the registry's to decide.
package controllerrestriction

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/identity"
)

// New returns the admission plugin.
func New() admission.ValidationInterface {
	return &plugin{admission.NewHandler(admission.Update)}
}

type plugin struct{ *admission.Handler }

// Validate refuses statuses that are the agent's to write.
func (*plugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetUserInfo() == nil || a.GetUserInfo().GetName() != identity.Controllers || a.GetSubresource() != "status" {
		return nil
	}
	switch was := a.GetOldObject().(type) {
	case *rack.MacNode:
		if is, ok := a.GetObject().(*rack.MacNode); !ok || !equality.Semantic.DeepEqual(ofAgent(was), ofAgent(is)) {
			return admission.NewForbidden(a, fmt.Errorf("of a MacNode's status the controllers write the condition %s, and its agent all else", rack.MacNodeReady))
		}
	case *instance.MacOSInstance:
		is, ok := a.GetObject().(*instance.MacOSInstance)
		if !ok || !equality.Semantic.DeepEqual(ofVM(was), ofVM(is)) {
			return admission.NewForbidden(a, fmt.Errorf("what is known of an instance's virtual machine is written by the agent of Mac %q", was.Status.NodeName))
		}
		switch is.Status.Phase {
		case was.Status.Phase, instance.MacOSInstanceScheduled, instance.MacOSInstanceStopped:
		default:
			return admission.NewForbidden(a, fmt.Errorf("an instance becomes %s when the agent of Mac %q says so", is.Status.Phase, was.Status.NodeName))
		}
	}
	return nil
}

// ofAgent returns what of a MacNode's status its agent writes, or the server.
func ofAgent(node *rack.MacNode) *rack.MacNodeStatus {
	status := node.Status.DeepCopy()
	var conditions []metav1.Condition
	for _, c := range status.Conditions {
		if c.Type != rack.MacNodeReady {
			conditions = append(conditions, c)
		}
	}
	status.Conditions = conditions
	return status
}

// ofVM returns what of an instance's status is about its virtual machine.
func ofVM(i *instance.MacOSInstance) any {
	s := &i.Status
	return []any{s.MachineID, s.MACAddress, s.IPAddress, s.ImageDigest, s.StartedAt, s.Startup}
}
