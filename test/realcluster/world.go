package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/pki"
)

// A world is a control plane with Nodes, and Macs outside of it.
type world struct {
	plan
	cluster    *cluster.Cluster
	pki        pki.Dir
	kubeconfig string
	clients    kubeconfig.Clients
	registryCA string
	fail       context.CancelCauseFunc
	nodes      []*node
	macs       []*mac
	// note is a result of the current step for the reader.
	note string
}

// runInner is the first process in the namespaces. It builds the world and runs the steps.
func runInner(ctx context.Context, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w := &world{fail: fail}
	if err := json.Unmarshal(data, &w.plan); err != nil {
		return err
	}
	if err := enter(ctx); err != nil {
		return fmt.Errorf("preparing the namespaces: %w", err)
	}
	err = w.runSteps(ctx, w.steps())
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return errors.Join(err, w.stop())
}

// enter makes the namespaces of this process usable: its own /proc, and a bridge for the machines.
func enter(ctx context.Context) error {
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
		syscall.Sethostname([]byte("control-plane")),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
	)
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", bridge, "type", "bridge"},
		{"addr", "add", controlPlaneAddress + prefix, "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		err = errors.Join(err, run(ctx, "ip", args...))
	}
	return err
}

// startControlPlane starts the control plane and the registries, and describes the machines.
func (w *world) startControlPlane(ctx context.Context) (err error) {
	if w.registryCA, err = w.serveRegistries(ctx, w.fail); err != nil {
		return err
	}
	admission := filepath.Join(w.Dir, "admission.yaml")
	// The policies are those of the chart, not the files that the dev cluster loads.
	if err := os.WriteFile(admission, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"), 0o644); err != nil {
		return err
	}
	w.cluster, err = cluster.Start(ctx, cluster.Options{
		Dir:     filepath.Join(w.Dir, "control-plane"),
		Address: controlPlaneAddress,
		ExtraArgs: map[string][]string{
			// The control plane has no kube-proxy.
			"kube-apiserver":          {"--enable-aggregator-routing", "--admission-control-config-file=" + admission},
			"kube-controller-manager": {"--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/16", "--node-cidr-mask-size=24"},
		},
	})
	if err != nil {
		return err
	}
	w.pki = pki.Dir(filepath.Join(w.cluster.Dir(), "pki"))
	if w.kubeconfig, err = w.cluster.Kubeconfig(cluster.Admin); err != nil {
		return err
	}
	if w.clients, err = w.cluster.Clients(cluster.Admin); err != nil {
		return err
	}
	for i := range w.Nodes {
		name := nodeName(i)
		w.nodes = append(w.nodes, &node{
			machine: machine{name: name, address: fmt.Sprintf("10.99.0.%d", i+1), dir: filepath.Join(w.Dir, name)},
			cgroup:  filepath.Join(w.Cgroup, name),
		})
	}
	for i := range macs {
		name := fmt.Sprintf("mac-%d", i+1)
		w.macs = append(w.macs, &mac{
			machine: machine{name: name, address: fmt.Sprintf("10.99.0.%d", 101+i), dir: filepath.Join(w.Dir, name)},
			serial:  fmt.Sprintf("SIM%07d", i+1),
		})
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// stop ends the machines and the control plane, and keeps their logs.
func (w *world) stop() (err error) {
	for _, m := range w.machines() {
		m.kill()
	}
	if w.cluster != nil {
		err = w.cluster.Stop()
	}
	return errors.Join(err, w.keepLogs())
}

// keepLogs copies the logs of programs and pods.
func (w *world) keepLogs() error {
	var errs error
	for _, pattern := range []string{"*/*.log", "control-plane/log/*.log", "*/log/pods/*/*/*.log"} {
		logs, err := filepath.Glob(filepath.Join(w.Dir, pattern))
		errs = errors.Join(errs, err)
		for _, log := range logs {
			name := strings.ReplaceAll(strings.TrimPrefix(log, w.Dir+"/"), "/", "-")
			errs = errors.Join(errs, run(context.Background(), "cp", log, filepath.Join(w.Logs, name)))
		}
	}
	return errs
}

func (w *world) machines() []*machine {
	var all []*machine
	for _, n := range w.nodes {
		all = append(all, &n.machine)
	}
	for _, m := range w.macs {
		all = append(all, &m.machine)
	}
	return all
}

// kubectl runs kubectl as an administrator, and returns its output.
func (w *world) kubectl(ctx context.Context, args ...string) (string, error) {
	stdout, _, err := w.cluster.Kubectl(ctx, cluster.Admin, args...)
	return strings.TrimSpace(stdout), err
}

// apply applies a manifest.
func (w *world) apply(ctx context.Context, manifest string, args ...string) error {
	_, _, err := w.cluster.KubectlWith(ctx, w.kubeconfig, manifest, append([]string{"apply", "-f", "-"}, args...)...)
	return err
}

// helm runs helm in the namespace of MacRack.
func (w *world) helm(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, w.bin("helm"), append(args, "--namespace="+cluster.Namespace, "--kubeconfig="+w.kubeconfig)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(w.Dir, "kube-cache"))
	for _, kind := range []string{"CACHE", "CONFIG", "DATA"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("HELM_%s_HOME=%s/helm", kind, w.Dir))
	}
	cmd.Dir = w.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
