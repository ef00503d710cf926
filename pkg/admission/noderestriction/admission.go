package noderestriction

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/requestuser"
)

// New returns the admission plugin. The authorizer has already checked which objects an agent may
// create or delete.
func New() admission.ValidationInterface {
	return &plugin{admission.NewHandler(admission.Create, admission.Update, admission.Delete)}
}

type plugin struct{ *admission.Handler }

// Validate refuses writes of an agent to objects of other Macs and to fields that agents do not
// own.
func (*plugin) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, isAgent := requestuser.AgentOf(a.GetUserInfo())
	if !isAgent {
		return nil
	}
	if node == "" {
		return admission.NewForbidden(a, fmt.Errorf("%q is in the group of agents, but is not the user of a Node", a.GetUserInfo().GetName()))
	}
	if a.GetOperation() == admission.Create && a.GetResource().GroupResource() == rack.Resource("auditrecords") {
		return nil
	}
	if a.GetOperation() != admission.Update || a.GetSubresource() != "status" {
		return admission.NewForbidden(a, fmt.Errorf("an agent may only write statuses and report rejections"))
	}
	switch old := a.GetOldObject().(type) {
	case *rack.MacNode:
		new, ok := a.GetObject().(*rack.MacNode)
		if !ok || old.Name != node {
			return admission.NewForbidden(a, fmt.Errorf("an agent may write only the status of its own MacNode %q", node))
		}
		if !sameCondition(old.Status.Conditions, new.Status.Conditions, rack.MacNodeReady) {
			return admission.NewForbidden(a, fmt.Errorf("an agent may not write the condition Ready of its Mac, which follows from its heartbeats"))
		}
		return nil
	case *instance.MacOSInstance:
		new, ok := a.GetObject().(*instance.MacOSInstance)
		if !ok || old.Status.NodeName != node {
			return admission.NewForbidden(a, fmt.Errorf("an agent may write only the status of instances on its own Mac %q", node))
		}
		if new.Status.PodName != old.Status.PodName {
			return admission.NewForbidden(a, fmt.Errorf("an agent may not change the placeholder pod of an instance"))
		}
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("an agent may write only the status of its MacNode and of the instances on it"))
}

func sameCondition(old, new []metav1.Condition, name string) bool {
	return equality.Semantic.DeepEqual(meta.FindStatusCondition(old, name), meta.FindStatusCondition(new, name))
}
