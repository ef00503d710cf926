package cluster

import (
	"context"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// Exec runs a command in a pod, as `kubectl exec` does, for timeout at most.
func Exec(ctx context.Context, config *rest.Config, timeout time.Duration, namespace, pod string, command ...string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	url := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true}, kubescheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
}
