package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/test/cluster/process"
)

// answers returns a readiness check that wants status 200 from a URL, with certificates from the
// pki unless the names are empty.
func (c *Cluster) answers(url, ca, client string) func(context.Context) error {
	return func(ctx context.Context) error {
		config := &tls.Config{}
		if ca != "" {
			pem, err := os.ReadFile(c.pki.CertFile(ca))
			if err != nil {
				return err
			}
			cert, err := tls.LoadX509KeyPair(c.pki.CertFile(client), c.pki.KeyFile(client))
			if err != nil {
				return err
			}
			config.RootCAs, config.Certificates = x509.NewCertPool(), []tls.Certificate{cert}
			config.RootCAs.AppendCertsFromPEM(pem)
		}
		return get(ctx, url, config)
	}
}

// get expects status 200.
func get(ctx context.Context, url string, config *tls.Config) error {
	// A separate transport avoids a kept connection that could outlive the checked process.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("GET %s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

func dialable(port int) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", process.Loopback(port))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// nodeReady returns a readiness check that requires a Ready Node, reported by the agent that runs
// now.
func (c *Cluster) nodeReady(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		started, err := os.Stat(filepath.Join(c.dir, "run", name+".pid"))
		if err != nil {
			return err
		}
		clients, err := c.Clients(Admin)
		if err != nil {
			return err
		}
		heartbeat, err := clients.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if heartbeat.Spec.RenewTime == nil || heartbeat.Spec.RenewTime.Time.Before(started.ModTime()) {
			return fmt.Errorf("the agent of node %s has sent no heartbeat since it was started", name)
		}
		node, err := clients.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("node %s is not Ready", name)
	}
}
