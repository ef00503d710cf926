// Package identity says who makes a request.
package identity

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

const (
	// Controllers is the user that macrack-controllers is.
	Controllers = "system:serviceaccount:macrack-system:macrack-controllers"

	agentPrefix = "system:node:"
)

// IsAgent says whether a Mac's agent makes the request: it has the identity of its Node.
func IsAgent(ctx context.Context) bool {
	return in(ctx, user.NodesGroup)
}

// AgentOf returns the name of the Node whose agent a user is, and whether it is one. The name is empty if the user
// is in the group of agents without being that of a Node.
func AgentOf(u user.Info) (node string, isAgent bool) {
	if u == nil || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	node, _ = strings.CutPrefix(u.GetName(), agentPrefix)
	if node == u.GetName() {
		return "", true
	}
	return node, true
}

// IsAdministrator says whether somebody makes the request who may do everything in the cluster.
func IsAdministrator(ctx context.Context) bool {
	return in(ctx, user.SystemPrivilegedGroup)
}

// Username returns the name of the user who makes the request.
func Username(ctx context.Context) string {
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		return u.GetName()
	}
	return ""
}

func in(ctx context.Context, group string) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), group)
}
