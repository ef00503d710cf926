package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/kubeconfig"
)

//go:embed config
var configs embed.FS

// clusterCA is the name of the authority in the pki of the control plane.
const clusterCA = "cluster-ca"

// A node is a Node with a kubelet, containerd and kube-proxy.
type node struct {
	machine
	cgroup string
}

// settings are the values of the files in config.
type settings struct {
	Name, Address, Dir, Cgroup            string
	Registry, Mirror, Packages            string
	ClusterCA, CertFile, KeyFile, PodCIDR string
}

func (w *world) settings(n *node) settings {
	return settings{
		Name: n.name, Address: n.address, Dir: n.dir, Cgroup: n.cgroup,
		Registry: w.Registry, Mirror: mirror, Packages: filepath.Join(w.nodeDir(), "root"),
		ClusterCA: w.pki.CertFile(clusterCA), CertFile: w.pki.CertFile(n.name), KeyFile: w.pki.KeyFile(n.name),
	}
}

// render returns a file of config with values.
func render(file string, values settings) (string, error) {
	t, err := template.ParseFS(configs, "config/"+file)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = t.Execute(&b, values)
	return b.String(), err
}

// configure writes the files of a Node.
func (w *world) configure(n *node) error {
	authority, err := w.pki.Authority(clusterCA)
	if err != nil {
		return err
	}
	if err := authority.Server(n.name, n.address); err != nil {
		return err
	}
	values := w.settings(n)
	for file, target := range map[string]string{
		"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "kube-proxy.yaml": "kube-proxy.yaml",
		"hosts.toml": "certs.d/" + w.Registry + "/hosts.toml",
	} {
		text, err := render(file, values)
		if err != nil {
			return err
		}
		path := filepath.Join(n.dir, target)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	for user, file := range map[string]string{"system:node:" + n.name: "kubelet.kubeconfig", "system:kube-proxy": "kube-proxy.kubeconfig"} {
		path, err := w.cluster.Kubeconfig(user)
		if err != nil {
			return err
		}
		if err := kubeconfig.Redirect(path, filepath.Join(n.dir, file), func(string) string { return w.cluster.Server() }); err != nil {
			return err
		}
	}
	return errors.Join(
		os.MkdirAll(filepath.Join(n.dir, "cni"), 0o755),
		os.MkdirAll(filepath.Join(n.dir, "volume"), 0o755),
		os.WriteFile(filepath.Join(n.dir, "resolv.conf"), []byte("nameserver 10.96.0.10\n"), 0o644),
	)
}

// startNode starts a Node, and returns when it is Ready.
func (w *world) startNode(ctx context.Context, n *node) error {
	if err := n.start(ctx); err != nil {
		return err
	}
	packages := filepath.Join(w.nodeDir(), "root")
	libraries, err := filepath.Glob(filepath.Join(packages, "usr/lib/*-linux-gnu"))
	if err != nil || len(libraries) != 1 {
		return fmt.Errorf("libraries of the packages not found in %s: %w", packages, err)
	}
	env := []string{
		fmt.Sprintf("PATH=%[1]s/usr/bin:%[1]s/usr/sbin:%[2]s", packages, os.Getenv("PATH")),
		"LD_LIBRARY_PATH=" + libraries[0],
	}
	err = n.launch(
		program{Name: "containerd", Env: env, Args: []string{filepath.Join(packages, "usr/bin/containerd"), "--config", filepath.Join(n.dir, "containerd.toml")}},
		program{Name: "kubelet", Env: env, Args: []string{
			filepath.Join(w.nodeDir(), "kubelet"), "--config", filepath.Join(n.dir, "kubelet.yaml"), "--kubeconfig", filepath.Join(n.dir, "kubelet.kubeconfig"),
			"--node-ip=" + n.address, "--hostname-override=" + n.name,
		}},
		program{Name: "kube-proxy", Env: env, Args: []string{filepath.Join(w.nodeDir(), "kube-proxy"), "--config", filepath.Join(n.dir, "kube-proxy.yaml")}},
	)
	if err != nil {
		return err
	}
	if err := w.joinPodNetwork(ctx, n); err != nil {
		return err
	}
	_, err = w.kubectl(ctx, "wait", "--for=condition=Ready", "node/"+n.name, "--timeout=3m")
	return err
}

// joinPodNetwork waits for the range of addresses that kube-controller-manager gives a Node, and
// routes it.
func (w *world) joinPodNetwork(ctx context.Context, n *node) error {
	values := w.settings(n)
	err := await.Success(ctx, 2*time.Minute, 500*time.Millisecond, func() error {
		var node *corev1.Node
		node, err := w.clients.Kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err == nil && node.Spec.PodCIDR == "" {
			err = fmt.Errorf("node %s has no pod network", n.name)
		}
		if err == nil {
			values.PodCIDR = node.Spec.PodCIDR
		}
		return err
	})
	if err != nil {
		return err
	}
	text, err := render("cni.conflist", values)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(n.dir, "cni", "bridge.conflist"), []byte(text), 0o644); err != nil {
		return err
	}
	// The machines send everything to the control plane by default, which forwards it.
	return run(ctx, "ip", "route", "replace", values.PodCIDR, "via", n.address)
}
