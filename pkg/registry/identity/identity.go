// Package identity says who makes a request.
package identity

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/printable"
	"macrack.io/macrack/pkg/rules"
)

// Controllers is the user that macrack-controllers is.
const Controllers = "system:serviceaccount:macrack-system:macrack-controllers"

// IsAgent says whether a Mac's agent makes the request: it has the identity of its Node.
func IsAgent(ctx context.Context) bool {
	return in(ctx, rules.NodesGroup)
}

// AgentOf returns the name of the Node whose agent a user is, and whether it is one. The name is empty if the user
// is in the group of agents without being that of a Node.
func AgentOf(u user.Info) (node string, isAgent bool) {
	if u == nil || !slices.Contains(u.GetGroups(), rules.NodesGroup) {
		return "", false
	}
	return rules.NodeOfUser(u.GetName()), true
}

// IsAdministrator says whether somebody makes the request who may do everything in the cluster.
func IsAdministrator(ctx context.Context) bool {
	return in(ctx, user.SystemPrivilegedGroup)
}

// maxName bounds what objects note of a user, in bytes.
const maxName = 1024

// User returns the name and the UID of the user who makes the request, as they can be shown.
func User(ctx context.Context) (name, uid string) {
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		return printable.Line(u.GetName(), maxName), printable.Line(u.GetUID(), maxName)
	}
	return "", ""
}

// Username returns the name of the user who makes the request, as it can be shown.
func Username(ctx context.Context) string {
	name, _ := User(ctx)
	return name
}

func in(ctx context.Context, group string) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), group)
}
