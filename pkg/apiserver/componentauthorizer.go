package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

// componentAuthorizer authorizes requests of the agents and the controllers. For each agent and
// object, macrack-apiserver would send a SubjectAccessReview to kube-apiserver. It first asks
// whether all agents, or the controllers, may access all objects of the resource, as their roles
// permit. The few answers are cached. Requests without that permission are checked one by one.
type componentAuthorizer struct {
	authorizer.Authorizer
}

// Authorize returns the decision of the wrapped authorizer.
func (c componentAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if component := componentOf(a.GetUser()); component != nil && a.IsResourceRequest() {
		decision, reason, err := c.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: component, Verb: a.GetVerb(), APIGroup: a.GetAPIGroup(), APIVersion: a.GetAPIVersion(),
			Resource: a.GetResource(), Subresource: a.GetSubresource(), ResourceRequest: true,
		})
		if err != nil || decision == authorizer.DecisionAllow {
			return decision, reason, err
		}
	}
	return c.Authorizer.Authorize(ctx, a)
}

// ConditionsAwareAuthorize returns the decision of Authorize, which has no conditions.
func (c componentAuthorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(c.Authorize(ctx, a))
}

// agents is a user who has the permissions of all agents, and no others.
var agents = &user.DefaultInfo{Groups: []string{rules.NodesGroup}}

// componentOf returns the user to ask for instead of u, or nil if u is neither an agent nor the
// controllers.
func componentOf(u user.Info) user.Info {
	if u == nil {
		return nil
	}
	if _, isAgent := requestuser.AgentOf(u); isAgent {
		return agents
	}
	if u.GetName() == requestuser.Controllers {
		return u
	}
	return nil
}
