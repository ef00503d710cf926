// Package noderestriction restricts an agent to its own Mac. The authorizer checks the request
// alone; the admission plugin checks writes against the existing object. Both only deny: RBAC must
// grant the permissions of agents.
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
	"macrack.io/macrack/pkg/registry/requestuser"
)

// InstanceNode returns the name of the Mac that an instance is on. If the instance does not exist,
// [apierrors.IsNotFound] is true for the error.
type InstanceNode func(ctx context.Context, namespace, name string) (string, error)

// NewAuthorizer returns the authorizer, which denies a request or has no opinion.
func NewAuthorizer(instanceNode InstanceNode) authorizer.Authorizer {
	r := &restriction{instanceNode}
	return authorizer.AuthorizerFunc(r.authorize)
}

type restriction struct{ instanceNode InstanceNode }

var (
	reads       = []string{"get", "list", "watch"}
	statusVerbs = []string{"get", "update", "patch"}

	// catalogue lists the resources that all agents may read. They contain no tenant data.
	catalogue = []schema.GroupResource{
		rack.Resource("macnodeclasses"),
		instance.Resource("instanceclasses"),
		image.Resource("macosimages"),
		config.Resource("rackconfigs"),
	}
)

func (r *restriction) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, isAgent := requestuser.AgentOf(a.GetUser())
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

// refuse returns the reason to deny a request of the agent of a Node, or an empty string.
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
		// The name in a list or watch is that of its field selector.
		if a.GetName() != node {
			return fmt.Sprintf("an agent can read only its own MacNode %q; lists and watches need the field selector metadata.name=%s", node, node), nil
		}
		return "", nil
	case resource == instance.Resource("macosinstances") && isRead && verb != "get":
		if !selects(a, "status.nodeName", node) {
			return fmt.Sprintf("an agent can read only the instances on its own Mac; lists and watches need the field selector status.nodeName=%s", node), nil
		}
		return "", nil
	case resource == instance.Resource("macosinstances") && (isRead || isStatus):
		return r.refuseInstance(ctx, node, a)
	}
	return fmt.Sprintf("the agent of Mac %q may only read its MacNode, the instances on it and the catalogue, write the status of the first two, and report rejections", node), nil
}

// refuseInstance returns the reason to deny access to an instance, or an empty string. The answer
// reveals whether the instance exists, because the agent must stop virtual machines without an
// instance.
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

// selects reports whether a list or watch is limited to objects whose field has the value.
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
