// Package noderestriction keeps an agent to its own Mac. The authorizer decides by the request alone what an agent
// may ask for at all; the admission plugin decides what it may write, by the object that is there. Both only take
// away: what an agent may do besides must be granted, as RBAC does.
package noderestriction

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"macrack.io/macrack/pkg/apis/config"
	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/identity"
)

// InstanceNode returns the name of the Mac that an instance is on. The error is one for [apierrors.IsNotFound] if there
// is no such instance.
type InstanceNode func(ctx context.Context, namespace, name string) (string, error)

// NewAuthorizer returns the authorizer, which refuses or has no opinion.
func NewAuthorizer(instanceNode InstanceNode) authorizer.Authorizer {
	r := &restriction{instanceNode}
	return authorizer.AuthorizerFunc(r.authorize)
}

type restriction struct{ instanceNode InstanceNode }

var (
	reads       = []string{"get", "list", "watch"}
	statusVerbs = []string{"get", "update", "patch"}

	// catalogue is what all agents may read: it is nobody's secret.
	catalogue = []schema.GroupResource{
		rack.Resource("macnodeclasses"),
		instance.Resource("instanceclasses"),
		image.Resource("macosimages"),
		config.Resource("rackconfigs"),
	}
)

func (r *restriction) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, isAgent := identity.AgentOf(a.GetUser())
	if !isAgent || !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if node == "" {
		return authorizer.DecisionDeny, fmt.Sprintf("%q is in the group of agents, but is not the user of a Node (system:node:<name>)", a.GetUser().GetName()), nil
	}
	refusal, err := r.refuse(ctx, node, a)
	if err != nil {
		return authorizer.DecisionDeny, "", err
	}
	if refusal != "" {
		return authorizer.DecisionDeny, refusal, nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// refuse says why the agent of a Node may not ask for this, or nothing if it may.
func (r *restriction) refuse(ctx context.Context, node string, a authorizer.Attributes) (string, error) {
	resource := schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}
	verb, subresource := a.GetVerb(), a.GetSubresource()
	isStatus := subresource == "status" && slices.Contains(statusVerbs, verb)
	isRead := subresource == "" && slices.Contains(reads, verb)
	switch {
	case slices.Contains(catalogue, resource) && isRead:
		return "", nil
	case resource == rack.Resource("auditrecords") && subresource == "" && verb == "create":
		return "", nil
	case resource == rack.Resource("macnodes") && (isRead || isStatus):
		// The name of what is listed or watched is that of its field selector.
		if a.GetName() != node {
			return fmt.Sprintf("an agent sees its own MacNode %q alone; lists and watches need the field selector metadata.name=%s", node, node), nil
		}
		return "", nil
	case resource == instance.Resource("macosinstances") && isRead && verb != "get":
		if !selects(a, "status.nodeName", node) {
			return fmt.Sprintf("an agent sees the instances on its own Mac alone; lists and watches need the field selector status.nodeName=%s", node), nil
		}
		return "", nil
	case resource == instance.Resource("macosinstances") && (isRead || isStatus):
		return r.refuseInstance(ctx, node, a)
	}
	return fmt.Sprintf("the agent of Mac %q reads its MacNode, the instances on it and the catalogue, writes the status of the first two, and reports rejections; nothing else", node), nil
}

// refuseInstance says why the agent may not have an instance. It learns whether there is one, as it must: a virtual
// machine without an instance is to be stopped.
func (r *restriction) refuseInstance(ctx context.Context, node string, a authorizer.Attributes) (string, error) {
	on, err := r.instanceNode(ctx, a.GetNamespace(), a.GetName())
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if on != node {
		return fmt.Sprintf("MacOSInstance %s/%s is not on Mac %q", a.GetNamespace(), a.GetName(), node), nil
	}
	return "", nil
}

// selects says whether a list or watch is limited to objects whose field has the value.
func selects(a authorizer.Attributes, field, value string) bool {
	requirements, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range requirements {
		if r.Field == field && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) && r.Value == value {
			return true
		}
	}
	return false
}
