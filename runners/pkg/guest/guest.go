// Package guest runs commands in the guests of instances, by pods/exec.
package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// maxOutput bounds the output that Output returns.
const maxOutput = 64 << 10

// Executor runs commands in guests.
type Executor interface {
	// Execute runs a command and returns its exit code. If the connection breaks, it may return 0
	// or an error, and the command is killed: callers must recognise success by the output.
	Execute(ctx context.Context, instance *instancev1alpha1.MacOSInstance, stdin io.Reader, stdout, stderr io.Writer, command ...string) (int, error)
}

// Pods is the Executor of a cluster.
type Pods struct {
	config *rest.Config
	client rest.Interface
}

// New returns the Executor of a cluster.
func New(config *rest.Config) (*Pods, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Pods{config: config, client: client.CoreV1().RESTClient()}, nil
}

// Execute implements Executor.
func (p *Pods) Execute(ctx context.Context, instance *instancev1alpha1.MacOSInstance, stdin io.Reader, stdout, stderr io.Writer, command ...string) (int, error) {
	if instance.Status.PodName == "" {
		return 0, fmt.Errorf("instance %q has no placeholder pod yet", instance.Name)
	}
	url := p.client.Post().Namespace(instance.Namespace).Resource("pods").Name(instance.Status.PodName).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Command: command, Stdin: stdin != nil, Stdout: stdout != nil, Stderr: stderr != nil,
		}, scheme.ParameterCodec).URL()
	websocket, err := remotecommand.NewWebSocketExecutor(p.config, http.MethodGet, url.String())
	if err != nil {
		return 0, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(p.config, http.MethodPost, url)
	if err != nil {
		return 0, err
	}
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return 0, err
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return exit.Code, nil
	}
	return 0, err
}

// Output runs a shell script in a guest and returns its standard output. The script is on the
// command line; secrets belong on the standard input.
func Output(ctx context.Context, executor Executor, instance *instancev1alpha1.MacOSInstance, stdin io.Reader, script string) (string, error) {
	var stdout, stderr bounded
	code, err := executor.Execute(ctx, instance, stdin, &stdout, &stderr, "/bin/sh", "-c", script)
	switch {
	case err != nil:
		return "", fmt.Errorf("command in the guest of instance %q: %w", instance.Name, err)
	case code != 0:
		return "", fmt.Errorf("command in the guest of instance %q: exit code %d: %s", instance.Name, code, bytes.TrimSpace(stderr.buffer.Bytes()))
	}
	return stdout.buffer.String(), nil
}

// bounded is a buffer that drops what exceeds maxOutput. It does not embed the buffer, whose
// ReadFrom knows no bound.
type bounded struct{ buffer bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(data []byte) (int, error) {
	if room := maxOutput - b.buffer.Len(); room > 0 {
		b.buffer.Write(data[:min(room, len(data))])
	}
	return len(data), nil
}
