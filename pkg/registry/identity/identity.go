// Package identity says who makes a request.
package identity

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// IsAgent says whether a Mac's agent makes the request: it has the identity of its Node.
func IsAgent(ctx context.Context) bool {
	return in(ctx, user.NodesGroup)
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
