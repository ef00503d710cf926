package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
)

const (
	team            = "team" // the namespace of the tenant
	lastInstallStep = "a Mac is leased"
	patience        = "--timeout=3m"
)

// steps returns the steps of the test, in their order.
func (w *world) steps() []step {
	return []step{
		{name: "Nodes are Ready", run: w.startNodes},
		{name: "the chart is installed", install: true, run: func(ctx context.Context) error { return w.install(ctx, w.Current) }},
		{name: "a catalogue is applied", install: true, run: w.applyCatalogue},
		{name: "two Macs join", install: true, run: w.joinMacs},
		{name: lastInstallStep, install: true, run: w.leaseMac},
		{name: "an image is pushed and verified", run: w.pushImage},
		{name: "two VMs run", run: w.startVMs},
		{name: "kubectl exec reaches a VM", run: w.execInVM},
		{name: "a third VM is refused", run: w.refuseThirdVM},
		{name: "a stopped VM frees its slot", run: w.stopVM},
		{name: "an early release is refused", run: w.refuseEarlyRelease},
		{name: "a snapshot of etcd is saved", run: w.backUp},
		{name: "a Node is drained", run: w.drainNode},
		{name: "a Node is killed", run: w.killNode},
		{name: "an earlier release continues with the data", run: w.reinstall},
		{name: "the chart is upgraded under load", run: w.upgrade},
		{name: "the chart is rolled back under load", run: w.rollBack},
		{name: "everything is uninstalled", run: w.uninstall},
	}
}

// startNodes starts everything that a cluster has before MacRack: Nodes, names and volumes.
func (w *world) startNodes(ctx context.Context) error {
	if err := w.startControlPlane(ctx); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := w.configure(n); err != nil {
			return err
		}
		volume, err := render("volume.yaml", w.settings(n))
		if err != nil {
			return err
		}
		if err := w.apply(ctx, volume); err != nil {
			return err
		}
		if err := w.startNode(ctx, n); err != nil {
			return err
		}
	}
	manifest, err := render("dns.yaml", w.settings(w.nodes[0]))
	if err != nil {
		return err
	}
	if err := w.apply(ctx, manifest); err != nil {
		return err
	}
	_, err = w.kubectl(ctx, "rollout", "status", "daemonset/coredns", "--namespace=kube-system", patience)
	return err
}

// install installs a release as docs/install.md describes.
func (w *world) install(ctx context.Context, r release) error {
	if err := w.helm(ctx, append([]string{"install", "macrack", r.Chart, "--create-namespace"}, w.values(r)...)...); err != nil {
		return err
	}
	if _, err := w.kubectl(ctx, "label", "--overwrite", "namespace", cluster.Namespace, "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		return err
	}
	return w.waitForAPI(ctx)
}

func (w *world) values(r release) []string {
	return []string{"--values=" + r.Values, "--set=etcd.image=" + w.systemImage("etcd"), fmt.Sprintf("--set=etcd.replicas=%d", w.plan.Nodes)}
}

// waitForAPI waits until kube-apiserver serves MacRack's groups, and all pods are ready.
func (w *world) waitForAPI(ctx context.Context) error {
	args := []string{"wait", "apiservices", "--for=condition=Available", "--timeout=5m"}
	for _, group := range cluster.Groups {
		args = append(args, "v1alpha1."+group)
	}
	if _, err := w.kubectl(ctx, args...); err != nil {
		return err
	}
	for _, workload := range []string{"deployment/macrack-apiserver", "deployment/macrack-controllers", "deployment/macrack-certificates", "statefulset/macrack-etcd"} {
		if _, err := w.kubectl(ctx, "rollout", "status", workload, "--namespace="+cluster.Namespace, patience); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) applyCatalogue(ctx context.Context) error {
	if _, err := w.kubectl(ctx, "apply", "-k", "artifacts/catalogue"); err != nil {
		return err
	}
	// All Macs share the disk of this machine, which may be small.
	_, err := w.kubectl(ctx, "patch", "rackconfig", "default", "--type=merge", "--patch", `{"spec":{"imageCache":{"minimumFree":"1Gi"}}}`)
	return err
}

func lease(name string) string {
	return fmt.Sprintf(`apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: %s, namespace: %s}
spec: {className: mini-m4}
`, name, team)
}

func (w *world) leaseMac(ctx context.Context) error {
	if _, err := w.kubectl(ctx, "create", "namespace", team); err != nil {
		return err
	}
	if err := w.apply(ctx, lease("build")); err != nil {
		return err
	}
	_, err := w.kubectl(ctx, "wait", "--for=condition=Ready", "macnodeleases/build", "--namespace="+team, patience)
	return err
}

func instance(name string) string {
	return fmt.Sprintf(`apiVersion: instance.macrack.io/v1alpha1
kind: MacOSInstance
metadata: {name: %s, namespace: %s}
spec: {leaseName: build, className: small, imageName: %s}
`, name, team, imageName)
}

func (w *world) startVMs(ctx context.Context) error {
	if err := w.apply(ctx, instance("one")+"---\n"+instance("two")); err != nil {
		return err
	}
	_, err := w.kubectl(ctx, "wait", "--for=condition=Ready", "macosinstances/one", "macosinstances/two", "--namespace="+team, patience)
	return err
}

func (w *world) execInVM(ctx context.Context) error {
	out, err := w.kubectl(ctx, "exec", "one-vm", "--namespace="+team, "--", "echo", "hello")
	if err == nil && out != "hello" {
		err = fmt.Errorf("the VM printed %q", out)
	}
	return err
}

// refused returns an error unless a request failed by a rule.
func refused(err error, rule string) error {
	if err == nil {
		return fmt.Errorf("accepted, although %s forbids it", rule)
	}
	if !strings.Contains(err.Error(), rule) {
		return fmt.Errorf("refused, but not by %s: %w", rule, err)
	}
	return nil
}

func (w *world) refuseThirdVM(ctx context.Context) error {
	return refused(w.apply(ctx, instance("three")), "rule 1 (two VMs per Mac)")
}

func (w *world) stopVM(ctx context.Context) error {
	_, _, err := w.cluster.KubectlWith(ctx, w.kubeconfig, `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","gracePeriodSeconds":1}`,
		"create", "--raw", "/apis/instance.macrack.io/v1alpha1/namespaces/"+team+"/macosinstances/two/stop", "-f", "-")
	if err != nil {
		return err
	}
	if _, err := w.kubectl(ctx, "wait", "--for=jsonpath={.status.phase}=Stopped", "macosinstances/two", "--namespace="+team, patience); err != nil {
		return err
	}
	if err := w.apply(ctx, instance("three")); err != nil {
		return err
	}
	_, err = w.kubectl(ctx, "wait", "--for=condition=Ready", "macosinstances/three", "--namespace="+team, patience)
	return err
}

// refuseEarlyRelease leases the second Mac and deletes the lease at once. The Mac stays leased.
func (w *world) refuseEarlyRelease(ctx context.Context) error {
	const rule = "rule 3 (at least 24 hours)"
	if err := w.apply(ctx, lease("spare")); err != nil {
		return err
	}
	if _, err := w.kubectl(ctx, "wait", "--for=condition=Ready", "macnodeleases/spare", "--namespace="+team, patience); err != nil {
		return err
	}
	_, warning, err := w.cluster.Kubectl(ctx, cluster.Admin, "delete", "macnodeleases/spare", "--namespace="+team, "--wait=false")
	if err != nil {
		return err
	}
	if !strings.Contains(warning, rule) {
		return fmt.Errorf("the deletion has no warning of %s: %q", rule, warning)
	}
	_, err = w.kubectl(ctx, "patch", "macnodeleases/spare", "--namespace="+team, "--type=merge", "--patch", `{"metadata":{"finalizers":null}}`)
	if err := refused(err, rule); err != nil {
		return err
	}
	phase, err := w.kubectl(ctx, "get", "macnodeleases/spare", "--namespace="+team, "--output=jsonpath={.status.phase}")
	if err == nil && phase != "Held" {
		err = fmt.Errorf("the lease is %s, not Held", phase)
	}
	return err
}

// undisturbed runs act, and returns an error if a VM ended meanwhile or a lease changed.
func (w *world) undisturbed(ctx context.Context, act func(context.Context) error) error {
	before, err := w.observe(ctx)
	if err != nil {
		return err
	}
	if err := act(ctx); err != nil {
		return err
	}
	if err := await.Sleep(ctx, settle); err != nil {
		return err
	}
	after, err := w.observe(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(before, after) {
		err = fmt.Errorf("before: %s; after: %s", strings.Join(before, ", "), strings.Join(after, ", "))
	}
	return err
}

// observe returns the processes of all VMs, and the bindings of the leases.
func (w *world) observe(ctx context.Context) (all []string, err error) {
	for _, m := range w.macs {
		pids, runnersErr := m.runners(ctx)
		err = errors.Join(err, runnersErr)
		all = append(all, m.name+": VMs "+strings.Join(pids, " "))
	}
	if vms := len(strings.Fields(strings.TrimPrefix(all[0], "mac-1: VMs "))); vms != 2 {
		err = errors.Join(err, fmt.Errorf("%d processes of VMs run on mac-1, not 2", vms))
	}
	const binding = `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.phase} {.status.boundAt}{"\n"}{end}`
	leases, leasesErr := w.kubectl(ctx, "get", "macnodeleases", "--namespace="+team, "--output="+binding)
	return append(all, strings.Split(leases, "\n")...), errors.Join(err, leasesErr)
}
