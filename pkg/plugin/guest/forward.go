package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// loopback is the only address on which ports are forwarded.
const loopback = "127.0.0.1"

// Forward implements Access.
func (a access) Forward(ctx context.Context, pod Pod, port int) (int, error) {
	url := a.clients.Kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(a.clients.Config)
	if err != nil {
		return 0, err
	}
	websocket, err := portforward.NewSPDYOverWebsocketDialer(url, a.clients.Config)
	if err != nil {
		return 0, err
	}
	dialer := portforward.NewFallbackDialer(websocket, spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), needsSPDY)

	var problems bytes.Buffer // read after the end of the forwarder
	ready, failed := make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddressesWithContext(ctx, dialer, []string{loopback}, []string{fmt.Sprintf("0:%d", port)}, ready, nil, &problems)
	if err != nil {
		return 0, err
	}
	go func() { failed <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		if err == nil {
			err = errors.New(strings.TrimSpace(problems.String()))
		}
		return 0, fmt.Errorf("failed to forward port %d of pod %s: %w", port, pod.Name, err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return 0, err
	}
	return int(ports[0].Local), nil
}
