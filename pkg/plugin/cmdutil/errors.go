package cmdutil

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var errNoKubeconfig = errors.New("no kubeconfig found; use --kubeconfig FILE, or set KUBECONFIG")

// ErrInterrupted is the error of a command that the user has interrupted.
var ErrInterrupted = errors.New("interrupted")

// interruptedCode is the exit code of a process that SIGINT ends, as in a shell.
const interruptedCode = 130

// An ExitError ends the plugin with an exit code. Without Err, nothing is printed.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the message.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode returns the exit code for the error of a command, and the message to print, if any.
func ExitCode(err error) (code int, message string) {
	var exit *ExitError
	switch {
	case err == nil:
		return 0, ""
	case errors.As(err, &exit) && exit.Err == nil:
		return exit.Code, ""
	case errors.As(err, &exit):
		return exit.Code, exit.Error()
	case errors.Is(err, ErrInterrupted) || errors.Is(err, context.Canceled):
		return interruptedCode, ErrInterrupted.Error()
	}
	return 1, err.Error()
}

// A Resource is a resource that a command reads.
type Resource struct {
	// Name is the name for people, such as "Macs".
	Name string
	// Resource and Group are those of the API.
	Resource, Group string
	// Namespace is empty for all namespaces, and for resources without namespaces.
	Namespace  string
	Namespaced bool
}

// In returns the resource in a namespace; an empty one means all.
func (r Resource) In(namespace string) Resource {
	r.Namespace = namespace
	return r
}

// Right describes the right to use a verb on the resource.
func (r Resource) Right(verb string) string {
	text := verb + " " + r.Resource
	if r.Group != "" {
		text += " in " + r.Group
	}
	switch {
	case !r.Namespaced:
		return text
	case r.Namespace == "":
		return text + " in all namespaces"
	}
	return text + " in namespace " + r.Namespace
}

// NotShown returns the notice that objects are missing in the output because the user may not use a
// verb.
func (r Resource) NotShown(verb string) string {
	return fmt.Sprintf("%s are not shown: you may not %s", r.Name, r.Right(verb))
}

// Explain returns the error of a request with a verb. It explains missing rights, and clusters
// without MacRack.
func (r Resource) Explain(verb string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s; ask an administrator for the right", r.NotShown(verb))
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the cluster does not serve %s.%s; select a cluster with MacRack with --context", r.Resource, r.Group)
	case apierrors.IsServiceUnavailable(err):
		return fmt.Errorf("%s.%s is not available; retry later: %w", r.Resource, r.Group, err)
	}
	return fmt.Errorf("failed to read %s: %w", r.Resource, err)
}
