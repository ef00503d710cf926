// Package guest runs commands in virtual machines and forwards their ports, through kube-apiserver
// and the placeholder pod.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/term"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/rules"
)

// A Pod is the placeholder pod of an instance.
type Pod struct {
	Namespace, Name string
}

// An Access reaches virtual machines.
type Access interface {
	// Exec runs a command. The error has the exit code of a command that fails, as in ExitCode.
	Exec(ctx context.Context, pod Pod, command []string, streams Streams) error
	// Forward listens on a port of the loopback interface and forwards connections to a port of the
	// guest, until ctx is done.
	Forward(ctx context.Context, pod Pod, port int) (local int, err error)
}

// Streams are the streams of a command. With a terminal, In is read unbuffered, and the size of the
// terminal follows that of the user.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Terminal *os.File
}

// PodOf returns the placeholder pod of an instance, which must run.
func PodOf(i *instancev1alpha1.MacOSInstance) (Pod, error) {
	switch {
	case rules.InstanceEnded(i.Status.Phase):
		return Pod{}, fmt.Errorf("instance %q has ended (%s); run kubectl macrack why mi/%s", i.Name, i.Status.Phase, i.Name)
	case i.Status.PodName == "" || i.Status.Phase != instancev1alpha1.MacOSInstanceRunning:
		return Pod{}, fmt.Errorf("instance %q does not run yet (%s); run kubectl macrack why mi/%s", i.Name, i.Status.Phase, i.Name)
	}
	return Pod{i.Namespace, i.Status.PodName}, nil
}

// ReadPod returns the placeholder pod of an instance by name.
func ReadPod(ctx context.Context, c *cmdutil.Clients, name string) (Pod, error) {
	i, err := c.MacRack.InstanceV1alpha1().MacOSInstances(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Pod{}, err
	}
	return PodOf(i)
}

// NewAccess returns the access with the rights of the user.
func NewAccess(c *cmdutil.Clients) Access { return access{c} }

type access struct{ clients *cmdutil.Clients }

// Exec implements Access.
func (a access) Exec(ctx context.Context, pod Pod, command []string, streams Streams) error {
	options := remotecommand.StreamOptions{Stdin: streams.In, Stdout: streams.Out, Stderr: streams.Err}
	if streams.Terminal != nil {
		state, err := term.MakeRaw(int(streams.Terminal.Fd()))
		if err != nil {
			return fmt.Errorf("failed to prepare the terminal: %w", err)
		}
		defer func() { _ = term.Restore(int(streams.Terminal.Fd()), state) }()
		sizes := watchSize(ctx, streams.Terminal)
		options.Tty, options.Stderr, options.TerminalSizeQueue = true, nil, sizes
	}
	url := a.clients.Kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Command: command, Stdin: options.Stdin != nil, Stdout: options.Stdout != nil, Stderr: options.Stderr != nil, TTY: options.Tty,
		}, scheme.ParameterCodec).URL()
	spdy, err := remotecommand.NewSPDYExecutor(a.clients.Config, http.MethodPost, url)
	if err != nil {
		return err
	}
	websocket, err := remotecommand.NewWebSocketExecutor(a.clients.Config, http.MethodGet, url.String())
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, needsSPDY)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}

// needsSPDY reports whether a proxy or an old server does not accept WebSockets.
func needsSPDY(err error) bool {
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
}

// ExitCode returns the exit code of a command that has run and failed.
func ExitCode(err error) (code int, failed bool) {
	var exit clientexec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitStatus(), true
	}
	return 0, false
}
