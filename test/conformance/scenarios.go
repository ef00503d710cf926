package main

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
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
	{name: "an instance waits for a missing Secret, and only its startup script gets the values", do: func(t *T, _ *kind) { environment(t) }},
	{name: "an instance ends at its deadline, and is deleted later", do: func(t *T, _ *kind) { deadline(t) }},
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
			got := t.kubectl(admin, "get", "quota", "macs", "--namespace="+namespace, "-o", `jsonpath={.status.used.count/macnodeleases\.rack\.macrack\.io}`).stdout
			if got != want {
				return fmt.Errorf("the quota shows %q used, not %q", got, want)
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
		got := kstatusOf(t, instance)
		assert.NotEqual(t, status.CurrentStatus, got, "as soon as its stop is requested")
		if got != status.FailedStatus {
			return fmt.Errorf("kstatus reports %s", got)
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
	assert.Contains(t, out.stderr, "the instance was checked without it")
	for range 2 {
		out = t.try(tenant, "apply", "-f", file)
		assert.NotZero(t, out.code)
		assert.Contains(t, out.stdout, "macnodelease.rack.macrack.io/"+name)
		assert.Contains(t, out.stderr, "wait until it is Bound: kubectl wait --for=condition=Bound macnodeleases/"+name)
	}
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
