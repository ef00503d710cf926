// Package requestuser identifies the user of a request.
package requestuser

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/printable"
	"macrack.io/macrack/pkg/rules"
)

// Controllers is the user name of macrack-controllers.
const Controllers = "system:serviceaccount:macrack-system:macrack-controllers"

// IsGarbageCollector reports whether the user of the request is the garbage collector of
// Kubernetes. With or without its own service account, it runs in kube-controller-manager.
func IsGarbageCollector(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && (u.GetName() == "system:serviceaccount:kube-system:generic-garbage-collector" || u.GetName() == user.KubeControllerManager)
}

// IsAgent reports whether the user of the request is the agent of a Mac, which has the identity of
// its Node.
func IsAgent(ctx context.Context) bool {
	return in(ctx, rules.NodesGroup)
}

// AgentOf returns the name of the Node of an agent, and whether the user is an agent. The name is
// empty if the user is in the group of agents but is not the user of a Node.
func AgentOf(u user.Info) (node string, isAgent bool) {
	if u == nil || !slices.Contains(u.GetGroups(), rules.NodesGroup) {
		return "", false
	}
	return rules.NodeOfUser(u.GetName()), true
}

// Subject returns the name under which limits count the requests of a user. The service accounts of
// a namespace count as one: its users can create any number, and impersonate each.
func Subject(u user.Info) string {
	if namespace, _, err := serviceaccount.SplitUsername(u.GetName()); err == nil {
		return serviceaccount.MakeNamespaceGroupName(namespace)
	}
	return u.GetName()
}

// IsAdministrator reports whether the user of the request is a cluster administrator.
func IsAdministrator(ctx context.Context) bool {
	return in(ctx, user.SystemPrivilegedGroup)
}

// maxName is the maximum length of a user name in an object, in bytes.
const maxName = 1024

// User returns the name and the UID of the user of the request, in printable form.
func User(ctx context.Context) (name, uid string) {
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		return printable.Line(u.GetName(), maxName), printable.Line(u.GetUID(), maxName)
	}
	return "", ""
}

// Username returns the name of the user of the request, in printable form.
func Username(ctx context.Context) string {
	name, _ := User(ctx)
	return name
}

func in(ctx context.Context, group string) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), group)
}
