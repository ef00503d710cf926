package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

// scenarios concern several kinds and run once.
var scenarios = []behaviour{
	{name: "get macrack ends with 0 for a tenant, and macrack-admin for an operator", do: func(t *T, _ *kind) { categories(t) }},
	{name: "a quota counts leases and shows the count", do: func(t *T, _ *kind) { quota(t) }},
	{name: "durations in days are accepted and kept", do: func(t *T, _ *kind) { days(t) }},
	{name: "an invalid duration is refused with the field and the units", do: func(t *T, _ *kind) { noDuration(t) }},
	{name: "a lease of a class without Macs is Stalled for kstatus", do: func(t *T, _ *kind) { stalled(t) }},
	{name: "an instance that was stopped is Stalled for kstatus", do: func(t *T, _ *kind) { stopped(t) }},
	{name: "a Mac in quarantine is Stalled for kstatus", do: func(t *T, _ *kind) { quarantined(t) }},
	{name: "an image that no registry has reports it in its Events and to users who create an instance of it", do: func(t *T, _ *kind) { imageUnknown(t) }},
	{name: "a lease and its instance in one file, where no Mac is free", do: func(t *T, _ *kind) { pairWithoutMac(t) }},
	{name: "the placeholder pod belongs to its instance, and supports logs, exec and cp", do: func(t *T, _ *kind) { placeholderPod(t) }},
	{name: "drain, eviction and a NoExecute taint leave the instance running", do: func(t *T, _ *kind) { drain(t) }},
	{name: "a namespace with a pending lease is deleted whole", do: func(t *T, _ *kind) { namespaceDeleted(t) }},
	{name: "exec waits for a guest that is booting", do: func(t *T, _ *kind) { execEarly(t) }},
	{name: "a lease and its instance in one file", do: func(t *T, _ *kind) { pair(t) }},
	{name: "a Held lease still has its conditions", do: func(t *T, _ *kind) { held(t) }},
	{name: "a namespace is restored into itself and into a fresh one", do: func(t *T, _ *kind) { restoreNamespace(t) }},
	{name: "helm installs, upgrades, replaces, rolls back and uninstalls a tenant's chart", do: func(t *T, _ *kind) { helmTenant(t) }},
	{name: "helm installs, upgrades and uninstalls an operator's chart", do: func(t *T, _ *kind) { helmOperator(t) }},
	{name: "kustomize builds artifacts, and applying them twice changes nothing", do: func(t *T, _ *kind) { kustomizations(t) }},
	{name: "restarts of the controllers and the servers change no object", do: func(t *T, _ *kind) { restarts(t) }},
	{name: "the ledger has no tampering by the tenant", do: func(t *T, _ *kind) { honest(t) }},
}

// namespaceFor creates a namespace for a scenario; its bound leases outlive it.
func namespaceFor(t *T, what string) string {
	name := "conformance-" + what + "-" + t.world.run
	t.world.makeNamespace(t, name)
	return name
}

func categories(t *T) {
	out := t.try(tenant, "get", "macrack", "-o", "name")
	assert.Zero(t, out.code, "kubectl get macrack: %s", out)
	assert.Empty(t, out.stderr)
	assert.Contains(t, out.stdout, "macnodelease.rack.macrack.io/settled")
	assert.Contains(t, out.stdout, "macosinstance.instance.macrack.io/settled")
	out = t.try(admin, "get", "macrack-admin", "-o", "name")
	assert.Zero(t, out.code, "kubectl get macrack-admin: %s", out)
	for _, kind := range []string{"macnode", "rackconfig", "compliancereport"} {
		assert.Contains(t, out.stdout, kind+".")
	}
}

func quota(t *T) {
	namespace := namespaceFor(t, "quota")
	t.cleanup(func() { t.try(admin, "delete", "namespace", namespace, "--wait=false") })
	t.apply(admin, fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: macs, namespace: %s}, spec: {hard: {count/macnodeleases.rack.macrack.io: "1"}}}`, namespace))
	used := func(want string) {
		require.NoError(t, t.eventually(func() error {
			is := t.kubectl(admin, "get", "quota", "macs", "--namespace="+namespace, "-o", `jsonpath={.status.used.count/macnodeleases\.rack\.macrack\.io}`).stdout
			if is != want {
				return fmt.Errorf("the quota shows %q used, not %q", is, want)
			}
			return nil
		}))
	}
	used("0")
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace)
	_, err := leases.Create(t, t.world.lease("first", "studio"), metav1Create)
	require.NoError(t, err)
	used("1")
	_, err = leases.Create(t, t.world.lease("second", "studio"), metav1Create)
	status := statusOf(t, err)
	assert.Equal(t, int32(403), status.Code)
	assert.Contains(t, status.Message, "exceeded quota: macs")
	assert.Contains(t, status.Message, "count/macnodeleases.rack.macrack.io=1")
	require.NoError(t, leases.Delete(t, "first", metav1Delete))
	used("0")
}

func days(t *T) {
	lease := t.world.lease(t.world.name(), "studio")
	lease.Object["spec"].(map[string]any)["expireAfter"] = "3d"
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace)
	created, err := leases.Create(t, lease, metav1Create)
	require.NoError(t, err)
	assert.Equal(t, "3d", field(created, "spec.expireAfter"))
	require.NoError(t, leases.Delete(t, lease.GetName(), metav1Delete))
}

func noDuration(t *T) {
	for _, value := range []string{"soon", "24", "1w"} {
		lease := t.world.lease(t.world.name(), "studio")
		lease.Object["spec"].(map[string]any)["expireAfter"] = value
		_, err := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace).Create(t, lease, metav1Create)
		status := statusOf(t, err)
		assert.Contains(t, []int32{400, 422}, status.Code)
		assert.Contains(t, status.Message, "expireAfter", value)
		assert.Regexp(t, `\bh\b|hours|24h|72h`, status.Message, "the accepted units, for %q", value)
	}
}

func stalled(t *T) {
	name := t.world.name()
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace)
	_, err := leases.Create(t, t.world.lease(name, "studio"), metav1Create)
	require.NoError(t, err)
	t.cleanup(func() { _ = leases.Delete(t, name, metav1Delete) })
	assert.NoError(t, t.eventually(func() error {
		lease, err := leases.Get(t, name, metav1Get)
		if err != nil {
			return err
		}
		result, err := status.Compute(lease)
		if err == nil && result.Status != status.FailedStatus {
			err = fmt.Errorf("kstatus reports %s: %s", result.Status, result.Message)
		}
		return err
	}))
}

func stopped(t *T) {
	name := t.world.name()
	instances := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace)
	_, err := instances.Create(t, t.world.instance(name, "settled"), metav1Create)
	require.NoError(t, err)
	t.cleanup(func() { t.try(tenant, "delete", "macosinstances", name, "--timeout=60s") })
	out := t.try(tenant, "wait", "--for=condition=Ready", "macosinstances/"+name, "--timeout=60s")
	require.Zero(t, out.code, out)
	stop := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstanceStop", "metadata": map[string]any{"name": name}}}
	_, err = instances.Create(t, stop, metav1Create, "stop")
	require.NoError(t, err)
	require.NoError(t, t.eventually(func() error {
		instance, err := instances.Get(t, name, metav1Get)
		if err != nil {
			return err
		}
		is := kstatusOf(t, instance)
		assert.NotEqual(t, status.CurrentStatus, is, "as soon as its stop is requested")
		if is != status.FailedStatus {
			return fmt.Errorf("kstatus reports %s", is)
		}
		return nil
	}))
	out = t.try(tenant, "wait", "--for=condition=Stalled", "macosinstances/"+name, "--timeout=10s")
	assert.Zero(t, out.code, out)
}

func quarantined(t *T) {
	name := t.world.name()
	t.apply(admin, fmt.Sprintf(`{apiVersion: rack.macrack.io/v1alpha1, kind: MacNode, metadata: {name: %s}, spec: {className: base, serialNumber: CONF%d}}`, name, t.world.next()))
	t.cleanup(func() { t.try(admin, "delete", "macnode", name) })
	t.kubectl(admin, "patch", "macnode", name, "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"SlotsHealthy","status":"False","reason":"KernelQuotaStuck","message":"stuck","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	mac, err := t.dynamic(admin).Resource(macResource).Get(t, name, metav1Get)
	require.NoError(t, err)
	assert.Equal(t, status.FailedStatus, kstatusOf(t, mac), field(mac, "status"))
}

func imageUnknown(t *T) {
	name := t.world.name()
	t.apply(admin, fmt.Sprintf(`{apiVersion: image.macrack.io/v1alpha1, kind: MacOSImage, metadata: {name: %s}, spec: {contents: [{name: macOS, version: "26.1"}, {name: Xcode, version: "26.1"}, {name: guest-agent, version: 0.1.0}],
  source: {reference: %q, digest: "sha256:%064x"}, diskSize: 60Gi}}`, name, t.world.values["reference"], t.world.next()))
	t.cleanup(func() { t.try(admin, "delete", "macosimage", name) })
	out := t.try(admin, "wait", "--for=condition=Stalled", "macosimage/"+name, "--timeout=30s")
	assert.Zero(t, out.code, out)
	out = t.kubectl(tenant, "describe", "macosimage", name)
	assert.Contains(t, out.stdout, "manifest unknown")
	require.NoError(t, t.eventually(func() error {
		if out := t.kubectl(admin, "events", "--all-namespaces", "--for=macosimage/"+name); !strings.Contains(out.stdout, "ManifestUnknown") {
			return fmt.Errorf("no event: %s", out)
		}
		return nil
	}))
	instance := t.world.instance(t.world.name(), "settled")
	instance.Object["spec"].(map[string]any)["imageName"] = name
	out = t.try(tenant, "apply", "-f", manifest(t, instance))
	assert.NotZero(t, out.code)
	assert.Contains(t, out.stderr, fmt.Sprintf("image %q is Failed, not Ready; see: kubectl describe macosimage %s", name, name))
}

func pairWithoutMac(t *T) {
	name := t.world.name()
	file := manifest(t, t.world.lease(name, t.world.values["empty"]), t.world.instance(name, name))
	t.cleanup(func() { t.try(tenant, "delete", "macnodelease", name, "--ignore-not-found") })
	out := t.try(tenant, "apply", "--dry-run=server", "-f", file)
	assert.Zero(t, out.code, out)
	assert.Contains(t, out.stderr, "this instance was checked without its lease")
	for range 2 {
		out = t.try(tenant, "apply", "-f", file)
		assert.NotZero(t, out.code)
		assert.Contains(t, out.stdout, "macnodelease.rack.macrack.io/"+name)
		assert.Contains(t, out.stderr, "wait until it is Bound: kubectl wait --for=condition=Bound macnodeleases/"+name)
	}
}

// settledPod returns the name of the placeholder pod of the shared instance.
func settledPod(t *T) string {
	instance, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
	require.NoError(t, err)
	pod := field(instance, "status.podName")
	require.NotEmpty(t, pod)
	return pod
}

func placeholderPod(t *T) {
	pod := settledPod(t)
	t.kubectl(tenant, "label", "pod", pod, "team=ios", "--overwrite")
	t.kubectl(tenant, "annotate", "pod", pod, "team=ios", "--overwrite")
	for _, user := range []string{tenant, admin} {
		namespace := "--namespace=" + t.world.namespace
		for _, tt := range []struct {
			args    []string
			refused string
		}{
			{[]string{"label", "pod", pod, "macrack.io/instance=other", "--overwrite"}, "use another prefix"},
			{[]string{"annotate", "pod", pod, "macrack.io/instance-uid-"}, "keep them"},
			{[]string{"patch", "pod", pod, "--type=merge", "-p", `{"metadata":{"ownerReferences":null}}`}, "delete or stop the MacOSInstance instead"},
			{[]string{"delete", "pod", pod, "--wait=false"}, "delete or stop the MacOSInstance"},
			{[]string{"delete", "pod", pod, "--grace-period=0", "--force", "--wait=false"}, "delete or stop the MacOSInstance"},
		} {
			out := t.try(user, append(tt.args, namespace)...)
			assert.NotZero(t, out.code, "%s: kubectl %s", user, strings.Join(tt.args, " "))
			assert.Contains(t, out.stderr, tt.refused, "%s: kubectl %s", user, strings.Join(tt.args, " "))
		}
	}
	out := t.try(tenant, "exec", pod, "-c", "absent", "--", "true")
	assert.Contains(t, out.stderr, "container absent is not valid for pod "+pod)
	assert.NotEmpty(t, t.kubectl(tenant, "logs", pod, "--tail=1").stdout)
	out = t.try(tenant, "attach", pod)
	assert.NotZero(t, out.code)
	assert.Contains(t, out.stderr, "use kubectl exec to run a command in it")

	there, back := filepath.Join(t.world.dir, "there"), filepath.Join(t.world.dir, "back")
	require.NoError(t, os.WriteFile(there, []byte("hello\n"), 0o600))
	t.kubectl(tenant, "cp", there, pod+":copied")
	assert.Equal(t, "hello\n", t.kubectl(tenant, "exec", pod, "--", "cat", "copied").stdout)
	t.kubectl(tenant, "cp", pod+":copied", back)
	copied, err := os.ReadFile(back)
	require.NoError(t, err)
	assert.Equal(t, "hello\n", string(copied))
}

func drain(t *T) {
	pod, mac := settledPod(t), t.world.values["mac"]
	t.cleanup(func() {
		t.try(admin, "uncordon", mac)
		t.try(admin, "taint", "node", mac, "conformance-")
	})
	out := t.try(admin, "drain", mac, "--ignore-daemonsets", "--timeout=3s")
	assert.NotZero(t, out.code)
	assert.Contains(t, out.stderr, "Cannot evict pod as it would violate the pod's disruption budget")
	t.kubectl(admin, "uncordon", mac)
	t.kubectl(admin, "taint", "node", mac, "conformance=x:NoExecute")
	select {
	case <-time.After(3 * time.Second):
	case <-t.Done():
	}
	live := t.kubectl(tenant, "get", "pod", pod, "-o", "jsonpath={.status.phase}{.metadata.deletionTimestamp}")
	assert.Equal(t, "Running", live.stdout)
	instance, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
	require.NoError(t, err)
	assert.Equal(t, "Running", field(instance, "status.phase"))
}

func namespaceDeleted(t *T) {
	namespace := namespaceFor(t, "deleted")
	_, err := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace).Create(t, t.world.lease("pending", "studio"), metav1Create)
	require.NoError(t, err)
	out := t.try(admin, "delete", "namespace", namespace, "--timeout=90s")
	assert.Zero(t, out.code, "delete namespace: %s", out)
}

func execEarly(t *T) {
	name := t.world.name()
	instances := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace)
	_, err := instances.Create(t, t.world.instance(name, "settled"), metav1Create)
	require.NoError(t, err)
	t.cleanup(func() { t.try(tenant, "delete", "macosinstances", name, "--timeout=60s") })
	pod := ""
	require.NoError(t, t.eventually(func() error {
		instance, err := instances.Get(t, name, metav1Get)
		if err != nil {
			return err
		}
		if pod = field(instance, "status.podName"); field(instance, "status.phase") != "Running" || pod == "" {
			return fmt.Errorf("the instance is %s", field(instance, "status.phase"))
		}
		return nil
	}))
	out := t.try(tenant, "exec", pod, "--", "echo", "hello")
	assert.Zero(t, out.code, "kubectl exec as soon as the instance is Running: %s", out)
	assert.Equal(t, "hello\n", out.stdout)
}

// pairObjects are a lease and its instance, both named pair.
func (w *world) pairObjects() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{w.lease("pair", "base"), w.instance("pair", "pair")}
}

func pair(t *T) {
	namespace := "--namespace=" + namespaceFor(t, "pair")
	file := manifest(t, t.world.pairObjects()...)
	out := t.try(tenant, "apply", "--dry-run=server", "-f", file, namespace)
	assert.Zero(t, out.code, "a dry run of the pair: %s", out)
	out = t.try(tenant, "apply", "--server-side", "--dry-run=server", "-f", file, namespace)
	assert.Zero(t, out.code, "a dry run of the pair by server-side apply: %s", out)
	out = t.try(tenant, "apply", "-f", file, namespace)
	assert.Zero(t, out.code, "the pair: %s", out)
	for _, object := range []string{"macnodeleases/pair", "macosinstances/pair"} {
		out = t.try(tenant, "wait", "--for=condition=Ready", object, "--timeout=60s", namespace)
		assert.Zero(t, out.code, "wait for %s: %s", object, out)
	}
	out = t.try(tenant, "apply", "-f", file, namespace)
	assert.Equal(t, 2, strings.Count(out.stdout, "unchanged"), "apply again: %s", out)
	records := t.kubectl(tenant, "get", "auditrecords", "--field-selector=type=InstanceRejected", "-o", "name", namespace)
	assert.Empty(t, records.stdout, "the pair must not cause a rejection in the ledger")
}

// held uses the pair of the previous scenario, or creates one.
func held(t *T) {
	namespace := ensurePair(t)
	t.kubectl(tenant, "delete", "macnodeleases", "pair", "--wait=false", "--namespace="+namespace)
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace)
	require.NoError(t, t.eventually(func() error {
		lease, err := leases.Get(t, "pair", metav1Get)
		if err == nil && field(lease, "status.phase") != "Held" {
			err = fmt.Errorf("the lease is %s", field(lease, "status.phase"))
		}
		return err
	}))
	out := t.try(tenant, "wait", "--for=condition=Bound", "macnodeleases/pair", "--timeout=20s", "--namespace="+namespace)
	assert.Zero(t, out.code, "wait for Bound of a Held lease: %s", out)
	out = t.try(tenant, "label", "macnodeleases", "pair", "held=yes", "--namespace="+namespace)
	assert.Zero(t, out.code, out)
}

// ensurePair returns the namespace of a pair, which it creates object by object unless it exists.
func ensurePair(t *T) string {
	namespace := namespaceFor(t, "pair")
	leases, instances := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace), t.dynamic(tenant).Resource(instanceResource).Namespace(namespace)
	objects := t.world.pairObjects()
	if _, err := leases.Get(t, "pair", metav1Get); isNotFound(err) {
		_, err := leases.Create(t, objects[0], metav1Create)
		require.NoError(t, err)
	}
	require.NoError(t, t.eventually(func() error {
		lease, err := leases.Get(t, "pair", metav1Get)
		if err == nil && field(lease, "status.nodeName") == "" {
			err = fmt.Errorf("the lease is %s", field(lease, "status.phase"))
		}
		return err
	}))
	if _, err := instances.Get(t, "pair", metav1Get); isNotFound(err) {
		_, err := instances.Create(t, objects[1], metav1Create)
		require.NoError(t, err)
	}
	return namespace
}

// restoreNamespace backs up the namespace of the suite, restores its lost objects, and restores all
// objects into a fresh namespace.
func restoreNamespace(t *T) {
	leases, instances := t.dynamic(tenant).Resource(leaseResource), t.dynamic(tenant).Resource(instanceResource)
	from := ensurePair(t)
	lease, err := leases.Namespace(from).Get(t, "pair", metav1Get)
	require.NoError(t, err)
	instance, err := instances.Namespace(from).Get(t, "pair", metav1Get)
	require.NoError(t, err)

	out := t.try(tenant, "delete", "macosinstances", "pair", "--timeout=60s", "--namespace="+from)
	require.Zero(t, out.code, out)
	_, err = leases.Namespace(from).Create(t, exported(lease), metav1Create)
	assert.Equal(t, int32(409), statusOf(t, err).Code, "an existing object is left alone")
	restored, err := instances.Namespace(from).Create(t, exported(instance), metav1Create)
	require.NoError(t, err, "the instance, into its own namespace")
	assert.Equal(t, instance.Object["spec"], restored.Object["spec"])

	to := namespaceFor(t, "restored")
	freshLease, freshInstance := exported(lease), exported(instance)
	freshLease.SetNamespace(to)
	freshInstance.SetNamespace(to)
	_, err = leases.Namespace(to).Create(t, freshLease, metav1Create)
	require.NoError(t, err, "the lease, into a fresh namespace")
	_, err = instances.Namespace(to).Create(t, freshInstance, metav1Create)
	require.NoError(t, err, "the instance, into a fresh namespace")
	out = t.try(tenant, "wait", "--for=condition=GuestReady", "macosinstances/pair", "--timeout=60s", "--namespace="+to)
	assert.Zero(t, out.code, "the restored instance: %s", out)
}

func (t *T) helm(user string, args ...string) output {
	return t.command(user, "", nil, "helm", args...)
}

func helmTenant(t *T) {
	namespace := namespaceFor(t, "helm")
	chart := filepath.Join(t.world.root, "test", "conformance", "testdata", "chart")
	helm := func(args ...string) output {
		return t.helm(tenant, append(args, "--namespace="+namespace, "--timeout=100s")...)
	}
	values := "--set=image=" + t.world.values["image"]
	step := func(what string, out output) {
		require.Zero(t, out.code, "helm %s: %s", what, out)
		assert.NotContains(t, strings.ToLower(out.stderr), "warning", what)
	}
	step("install --wait", helm("install", "builds", chart, values, "--wait"))
	step("upgrade --wait", helm("upgrade", "builds", chart, values, "--set=expireAfter=96h", "--set=team=macos", "--wait"))
	step("upgrade that changes nothing", helm("upgrade", "builds", chart, values, "--set=expireAfter=96h", "--set=team=macos", "--wait"))
	step("upgrade --force-replace", helm("upgrade", "builds", chart, values, "--set=expireAfter=97h", "--force-replace", "--server-side=false", "--wait"))
	step("rollback --wait", helm("rollback", "builds", "1", "--wait"))
	lease, err := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace).Get(t, "builds", metav1Get)
	require.NoError(t, err)
	assert.Equal(t, "72h", field(lease, "spec.expireAfter"), "after the rollback")
	assert.Equal(t, "ios", lease.GetLabels()["team"])
	assert.Contains(t, lease.GetFinalizers(), "macrack.io/floor")
	out := helm("uninstall", "builds")
	assert.Zero(t, out.code, "uninstall: %s", out)
	assert.Contains(t, out.String(), "rule 3 (24 hours at least)", "uninstall warns that the lease stays until its floor")
	assert.NoError(t, t.eventually(func() error {
		lease, err := t.dynamic(tenant).Resource(leaseResource).Namespace(namespace).Get(t, "builds", metav1Get)
		if err == nil && field(lease, "status.phase") != "Held" {
			err = fmt.Errorf("the lease is %s", field(lease, "status.phase"))
		}
		return err
	}), "after uninstall the lease is Held")
}

func helmOperator(t *T) {
	chart := filepath.Join(t.world.root, "test", "conformance", "testdata", "catalogue")
	name := t.world.name()
	t.cleanup(func() { t.helm(admin, "uninstall", name, "--namespace="+t.world.namespace, "--ignore-not-found") })
	for _, args := range [][]string{
		{"install", name, chart, "--wait"},
		{"upgrade", name, chart, "--set=sku=two", "--wait"},
		{"upgrade", name, chart, "--set=sku=three", "--force-replace", "--server-side=false", "--wait"},
		{"rollback", name, "1", "--wait"},
		{"uninstall", name, "--wait", "--cascade=foreground"},
	} {
		out := t.helm(admin, append(args, "--namespace="+t.world.namespace, "--timeout=60s")...)
		require.Zero(t, out.code, "helm %s: %s", strings.Join(args, " "), out)
	}
}

// kustomizations builds the shipped kustomizations, and applies the example with the cluster's
// images.
func kustomizations(t *T) {
	for _, dir := range []string{"artifacts/example", "artifacts/example/macs", "artifacts/deploy", "artifacts/policies"} {
		out := t.command(admin, "", nil, "kustomize", "build", filepath.Join(t.world.root, dir))
		require.Zero(t, out.code, "kustomize build %s: %s", dir, out)
		assert.Empty(t, out.stderr, "kustomize build %s", dir)
		if dir == "artifacts/example" {
			continue // the cluster has its own images
		}
		applied := t.command(admin, out.stdout, nil, "kubectl", "apply", "--server-side", "--force-conflicts", "--field-manager=macrack-dev", "--dry-run=server", "-f", "-")
		assert.Zero(t, applied.code, "apply of %s: %s", dir, applied)
		assert.Empty(t, applied.stderr, "apply of %s", dir)
	}
	example := filepath.Join(t.world.cluster.Dir(), "example")
	before := t.versions()
	out := t.try(admin, "apply", "--server-side", "--force-conflicts", "--field-manager=macrack-dev", "-k", example)
	require.Zero(t, out.code, out)
	assert.Empty(t, out.stderr, "apply -k of the example")
	assert.Equal(t, before, t.versions(), "resourceVersions after the example was applied again")

	// Apply the example as a user of kubectl apply -k.
	first := t.try(admin, "apply", "-k", example)
	assert.Zero(t, first.code, first)
	second := t.try(admin, "apply", "-k", example)
	assert.Zero(t, second.code, second)
	assert.Empty(t, second.stderr, "apply -k for the second time")
	for line := range strings.Lines(second.stdout) {
		assert.Contains(t, line, "unchanged")
	}
}

// versions returns the generations of all objects of the example.
func (t *T) versions() map[string]int64 {
	out := map[string]int64{}
	list := t.kubectl(admin, "get", "macnodeclasses,instanceclasses,macosimages,macnodes,rackconfigs", "-o", "yaml")
	parsed := unstructured.UnstructuredList{}
	require.NoError(t, yaml.Unmarshal([]byte(list.stdout), &parsed))
	for _, item := range parsed.Items {
		out[item.GetKind()+"/"+item.GetName()] = item.GetGeneration()
	}
	return out
}

func restarts(t *T) {
	lease := func() *unstructured.Unstructured {
		is, err := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
		require.NoError(t, err)
		return is
	}
	instance := func() *unstructured.Unstructured {
		is, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
		require.NoError(t, err)
		return is
	}
	beforeLease, beforeInstance := lease(), instance()
	names := t.world.cluster.Names()
	for _, name := range names {
		if strings.HasPrefix(name, "macrack-controllers-") || strings.HasPrefix(name, "macrack-apiserver-") {
			require.NoError(t, t.world.cluster.Restart(t, name), "restart %s", name)
		}
	}
	require.True(t, slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "macrack-controllers-") }))
	// The controllers report on a new lease, so they work.
	name := t.world.name()
	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(t.world.namespace)
	require.NoError(t, t.eventually(func() error {
		_, err := leases.Create(t, t.world.lease(name, "studio"), metav1Create)
		return err
	}))
	t.cleanup(func() { _ = leases.Delete(t, name, metav1Delete) })
	require.NoError(t, t.eventually(func() error {
		is, err := leases.Get(t, name, metav1Get)
		if err == nil && field(is, "status.conditions") == "" {
			err = errStillWritten
		}
		return err
	}), "the controllers report on a new lease")
	select {
	case <-time.After(3 * time.Second):
	case <-t.Done():
	}
	assert.Equal(t, beforeLease.GetResourceVersion(), lease().GetResourceVersion(), "the lease was written: %s", changes(beforeLease, lease()))
	assert.Equal(t, beforeInstance.GetResourceVersion(), instance().GetResourceVersion(), "the instance was written: %s", changes(beforeInstance, instance()))
}

// honest looks for records that count the suite's tenant as tampering, or as reaching for another
// tenant's Mac.
func honest(t *T) {
	list, err := t.dynamic(admin).Resource(recordResource).List(t, metav1List)
	require.NoError(t, err)
	for _, record := range list.Items {
		kind, actor := field(&record, "type"), field(&record, "actor.username")
		if actor == tenant && (kind == "FloorTamperRejected" || kind == "CrossTenantRejected") {
			t.Errorf("record %s/%s is %s: %s: %s", record.GetNamespace(), record.GetName(), kind, field(&record, "details.reason"), field(&record, "details.message"))
		}
	}
}
