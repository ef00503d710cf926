// Package controllerrestriction prevents macrack-controllers from reporting facts that only the
// agent of a Mac can observe: its hardware, its health, its scrub and its running virtual machines.
// It also prevents them from deleting leases and instances that have not expired.
// RBAC grants the permissions of the controllers, and the registry validates their writes.
package controllerrestriction

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

// New returns the admission plugin.
func New(clock clock.PassiveClock) admission.ValidationInterface {
	return &plugin{admission.NewHandler(admission.Update, admission.Delete), clock}
}

type plugin struct {
	*admission.Handler
	clock clock.PassiveClock
}

// Validate refuses changes of status fields that only agents write, and deletions of leases and
// instances that have not expired.
func (p *plugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetUserInfo() == nil || a.GetUserInfo().GetName() != requestuser.Controllers {
		return nil
	}
	if a.GetOperation() == admission.Delete {
		return p.validateDelete(a)
	}
	if a.GetSubresource() != "status" {
		return nil
	}
	switch old := a.GetOldObject().(type) {
	case *rack.MacNode:
		if new, ok := a.GetObject().(*rack.MacNode); !ok || !equality.Semantic.DeepEqual(ofAgent(old), ofAgent(new)) {
			return admission.NewForbidden(a, fmt.Errorf("the controllers may change only the condition %s in the status of a MacNode", rack.MacNodeReady))
		}
	case *instance.MacOSInstance:
		new, ok := a.GetObject().(*instance.MacOSInstance)
		if !ok || !equality.Semantic.DeepEqual(ofVM(old), ofVM(new)) {
			return admission.NewForbidden(a, fmt.Errorf("only the agent of Mac %q reports the state of the virtual machine", old.Status.NodeName))
		}
		switch new.Status.Phase {
		case old.Status.Phase, instance.MacOSInstanceScheduled, instance.MacOSInstanceStopped:
		default:
			return admission.NewForbidden(a, fmt.Errorf("an instance becomes %s only when the agent of Mac %q reports it", new.Status.Phase, old.Status.NodeName))
		}
	}
	return nil
}

func (p *plugin) validateDelete(a admission.Attributes) error {
	switch old := a.GetOldObject().(type) {
	case *instance.MacOSInstance:
		if !rules.InstanceEnded(old.Status.Phase) || !rules.IsDue(rules.InstanceExpiry(old.Status.StoppedAt, old.Spec.TTLSecondsAfterFinished), p.clock.Now()) {
			return admission.NewForbidden(a, errors.New("the controllers delete only instances that have ended and whose ttlSecondsAfterFinished has passed"))
		}
	case *rack.MacNodeLease:
		floor := rules.LeaseFloor(old.Status.BoundAt, old.Spec.MinimumDuration.Value(), old.Status.EarliestReleaseAt)
		if !rules.IsDue(rules.LeaseExpiry(old.Status.BoundAt, old.Spec.ExpireAfter.Value(), floor), p.clock.Now()) {
			return admission.NewForbidden(a, errors.New("the controllers delete only leases whose expireAfter has passed"))
		}
	}
	return nil
}

// ofAgent returns the fields of a MacNode's status that its agent or the server writes.
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

// ofVM returns the fields of an instance's status that describe its virtual machine.
func ofVM(i *instance.MacOSInstance) any {
	s := &i.Status
	return []any{s.MachineID, s.MACAddress, s.IPAddress, s.ImageDigest, s.StartedAt, s.Startup}
}
