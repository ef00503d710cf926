package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// kinds are all kinds with their short names and columns; the wide columns follow the bar.
var kinds = []struct {
	resource   string
	namespaced bool
	short      []string
	columns    string
}{
	{"macnodeclasses", false, []string{"mnc"}, "NAME CHIP CPU MEMORY STORAGE TOTAL AVAILABLE LEASED HELD UTILISATION AGE | MODEL SKU"},
	{"macnodes", false, []string{"mn"}, "NAME SERIAL CLASS PHASE TENANT LEASE VMS RELEASE-AT AGE | LOCATION MACOS AGENT FREE"},
	{"macnodeleases", true, []string{"mnl"}, "NAME CLASS SERIAL PHASE VMS BOUND-AT RELEASE-AT REMAINING AGE | NODE"},
	{"auditrecords", true, []string{"ar"}, ""},
	{"compliancereports", false, nil, "NAME CHASSIS LEASES VM-STARTS MAX-VMS OVERLAPS FLOOR-BREACHES REJECTED VERDICT |"},
	{"usagereports", true, nil, "NAME LEASES CHASSIS-DAYS HELD AS-OF | CHASSIS-TIME RUNNING UNPROVEN"},
	{"instanceclasses", false, []string{"ic"}, "NAME CPU MEMORY STORAGE AGE |"},
	{"macosinstances", true, []string{"mi"}, "NAME LEASE IMAGE CLASS PHASE IP AGE | NODE SERIAL MAC MACHINE-ID MESSAGE"},
	{"macosimages", false, []string{"mimg"}, "NAME MACOS XCODE PHASE SIZE REPLICAS AGE |"},
	{"rackconfigs", false, nil, ""},
}

func TestKubectlSurface(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "surface")
	instance := startInstance(t, acme, "vm", "surface")

	t.Run("columns", func(t *testing.T) {
		for _, kind := range kinds {
			if kind.columns == "" {
				continue
			}
			narrow, wide, _ := strings.Cut(kind.columns, " |")
			assert.Equal(t, strings.Fields(narrow), header(t, admin, "get", kind.resource, "--namespace=acme"), kind.resource)
			assert.Equal(t, append(strings.Fields(narrow), strings.Fields(wide)...), header(t, admin, "get", kind.resource, "--namespace=acme", "-o", "wide"), kind.resource)
		}
		stdout, _ := kubectl(t, acme, "get", leases, "surface", "-o", "wide", "--no-headers")
		at := func(time *metav1.Time) string { return regexp.QuoteMeta(time.UTC().Format("2006-01-02T15:04:05Z")) }
		assert.Regexp(t, fmt.Sprintf(`^surface +base +%s +Bound +1/2 +%s +%s +23h +\S+ +%s\n$`,
			lease.Status.SerialNumber, at(lease.Status.BoundAt), at(lease.Status.EarliestReleaseAt), lease.Status.NodeName), stdout)
		stdout, _ = kubectl(t, acme, "get", instances, "vm", "-o", "wide", "--no-headers")
		assert.Equal(t, []string{"vm", "surface", "macos-15-xcode-16", "small", "Running", instance.Status.IPAddress.Value}, strings.Fields(stdout)[:6])
		assert.Equal(t, []string{instance.Status.NodeName, instance.Status.SerialNumber, instance.Status.MACAddress, instance.Status.MachineID, "<none>"}, strings.Fields(stdout)[7:])
	})

	t.Run("names", func(t *testing.T) {
		for _, kind := range kinds {
			for _, short := range kind.short {
				long, _ := kubectl(t, admin, "get", kind.resource, "-A", "-o", "name")
				stdout, _ := kubectl(t, "direct", "get", short, "-A", "-o", "name")
				assert.Equal(t, long, stdout, short)
				stdout, _ = kubectl(t, admin, "get", short, "-A", "-o", "name")
				assert.Equal(t, long, stdout, short)
			}
		}
		stdout, _ := kubectl(t, "direct-acme", "get", "leases", "-o", "name")
		assert.Equal(t, "macnodelease.rack.macrack.io/surface\n", stdout, "directly at macrack-apiserver, the short name is MacRack's")
		stdout, _ = kubectl(t, acme, "get", leases, "-o", "name")
		assert.Equal(t, "macnodelease.rack.macrack.io/surface\n", stdout)
		stdout, _ = kubectl(t, admin, "get", "leases", "--namespace=kube-node-lease", "-o", "name")
		assert.Contains(t, stdout, "lease.coordination.k8s.io/mac-1", "the cluster's own name is not hijacked")
		stdout, _ = kubectl(t, acme, "get", "macrack", "-o", "name")
		assert.Contains(t, stdout, "macnodelease.rack.macrack.io/surface\n")
		stdout, _ = kubectl(t, admin, "get", "macrack,macrack-admin", "-A", "-o", "name")
		for _, want := range []string{"macnode.", "macnodeclass.", "macnodelease.", "auditrecord.", "compliancereport.", "usagereport.", "instanceclass.", "macosinstance.", "macosimage.", "rackconfig."} {
			assert.Contains(t, stdout, want)
		}
		tenants, _ := kubectl(t, admin, "api-resources", "--categories=macrack", "-o", "name")
		operators, _ := kubectl(t, admin, "api-resources", "--categories=macrack-admin", "-o", "name")
		for _, kind := range kinds {
			assert.Contains(t, tenants+operators, kind.resource+".")
		}
	})

	t.Run("selectors", func(t *testing.T) {
		for selector, want := range map[string]string{
			leases + " status.phase=Bound":                                "macnodelease.rack.macrack.io/surface\n",
			leases + " status.phase=Pending":                              "",
			leases + " status.serialNumber=" + lease.Status.SerialNumber:  "macnodelease.rack.macrack.io/surface\n",
			leases + " metadata.name!=surface":                            "",
			instances + " spec.leaseName=surface":                         "macosinstance.instance.macrack.io/vm\n",
			instances + " status.nodeName=" + lease.Status.NodeName:       "macosinstance.instance.macrack.io/vm\n",
			instances + " status.phase=Stopped":                           "",
			instances + " status.phase!=Stopped,spec.leaseName=surface":   "macosinstance.instance.macrack.io/vm\n",
			"auditrecords type=LeaseBound,chassis.serialNumber=unknown-1": "",
		} {
			resource, fields, _ := strings.Cut(selector, " ")
			stdout, _ := kubectl(t, acme, "get", resource, "--field-selector="+fields, "-o", "name")
			assert.Equal(t, want, stdout, selector)
		}
		stdout, _ := kubectl(t, admin, "get", "macnodes", "--field-selector=status.phase=Leased", "-o", "name")
		assert.Equal(t, "macnode.rack.macrack.io/"+lease.Status.NodeName+"\n", stdout)
		assert.Contains(t, kubectlFails(t, acme, "get", leases, "--field-selector=spec.colour=green"), "spec.colour")
	})

	t.Run("describe", func(t *testing.T) {
		stdout, _ := kubectl(t, acme, "describe", leases, "surface")
		for _, want := range []string{"Phase:", "Bound", lease.Status.SerialNumber, "Earliest Release At:", "Events:"} {
			assert.Contains(t, stdout, want)
		}
		stdout, _ = kubectl(t, acme, "describe", instances, "vm")
		for _, want := range []string{instance.Status.MachineID, "GuestReady", "Events:", "Started"} {
			assert.Contains(t, stdout, want)
		}
	})

	t.Run("dry run", func(t *testing.T) {
		before := snapshot(t)
		create(t, acme, instanceManifest("dry", "surface"), "--dry-run=server")
		assert.Equal(t, before, snapshot(t), "a dry run writes nothing")
		assertNone(t, acme, "dry")
		startInstance(t, acme, "vm2", "surface")
		recorded := len(records(t, acme, "InstanceRejected", "surface"))
		said := createFails(t, acme, instanceManifest("dry", "surface"), "--dry-run=server")
		assert.Contains(t, said, "rule 1 (two VMs per Mac)", "a dry run is refused like the real request")
		assert.Len(t, records(t, acme, "InstanceRejected", "surface"), recorded, "a dry run records nothing")
		kubectl(t, acme, "delete", leases, "surface", "--dry-run=server")
		assert.Nil(t, getLease(t, acme, "surface").DeletionTimestamp)
	})
}

func header(t *testing.T, user string, args ...string) []string {
	t.Helper()
	stdout, _ := kubectl(t, user, args...)
	first, _, _ := strings.Cut(stdout, "\n")
	return strings.Fields(first)
}

var fieldLine = regexp.MustCompile(`^( +)(\S+)\t<`)

// Every field of every kind is explained.
func TestExplain(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.resource, func(t *testing.T) {
			paths := []string{kind.resource}
			stdout, _ := kubectl(t, admin, "explain", kind.resource, "--recursive")
			_, tree, ok := strings.Cut(stdout, "FIELDS:\n")
			require.True(t, ok, stdout)
			// paths of the fields that have subfields.
			var path []string
			fields := 0
			for line := range strings.Lines(tree) {
				m := fieldLine.FindStringSubmatch(line)
				if m == nil {
					continue
				}
				fields++
				depth := len(m[1])/2 - 1
				if depth > len(path)-1 && depth > 0 {
					paths = append(paths, kind.resource+"."+strings.Join(path, "."))
				}
				path = append(path[:depth], m[2])
			}
			assert.Greater(t, fields, 20)
			for _, path := range paths {
				stdout, _ := kubectl(t, admin, "explain", path)
				assert.NotContains(t, stdout, "<no description>", path)
				assert.Contains(t, stdout, "FIELDS:", path)
			}
		})
	}
	stdout, _ := kubectl(t, admin, "explain", "macnodeleases.spec.minimumDuration")
	assert.Contains(t, stdout, "24")
}

// The client that applies a spec owns it, and the reporter of the status owns the status.
func TestServerSideApply(t *testing.T) {
	reset(t)
	applied := `
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: applied, labels: {team: ios}}
spec: {className: base, prefetchImages: [macos-15-xcode-16]}
status: {phase: Bound, nodeName: mac-1}
`
	apply := func(t *testing.T, manifest string, args ...string) {
		t.Helper()
		_, _, err := tb.KubectlInput(t.Context(), manifest, acme, append([]string{"apply", "--server-side", "-f", "-"}, args...)...)
		require.NoError(t, err)
	}
	apply(t, applied)
	kubectl(t, acme, "wait", "--for=condition=Bound", leases+"/applied", "--timeout="+patience.String())
	version := getLease(t, acme, "applied").ResourceVersion
	apply(t, applied)
	assert.Equal(t, version, getLease(t, acme, "applied").ResourceVersion, "applying the same again changes nothing")
	owned := owners(t, getLease(t, acme, "applied").ManagedFields)
	assert.Contains(t, owned["kubectl"], "f:prefetchImages")
	assert.NotContains(t, owned["kubectl"], "f:status", "dropped fields have no owner")

	apply(t, strings.ReplaceAll(applied, "team: ios", "team: macos"))
	assert.Equal(t, "macos", getLease(t, acme, "applied").Labels["team"])
	_, stderr, err := tb.KubectlInput(t.Context(), strings.ReplaceAll(applied, "team: ios", "team: tvos"), acme, "apply", "--server-side", "--field-manager=another", "-f", "-")
	require.Error(t, err)
	assert.Contains(t, stderr, "conflict")

	instance := strings.TrimSpace(instanceManifest("vm", "applied"))
	apply(t, instance)
	kubectl(t, acme, "wait", "--for=condition=GuestReady", instances+"/vm", "--timeout="+patience.String())
	apply(t, instance)
	vm, err := client(t, acme).InstanceV1alpha1().MacOSInstances(acme).Get(t.Context(), "vm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, instancev1alpha1.MacOSInstanceRunning, vm.Status.Phase, "applying the spec leaves the status alone")
	owned = owners(t, vm.ManagedFields)
	assert.Contains(t, owned["kubectl"], "f:imageName")
	assert.NotContains(t, owned["kubectl"], "f:status")
	assert.Empty(t, owned["status"], "the owners of statuses are not stored")
}

// owners returns the fields, as JSON, by manager; the writers of the subresource status are merged.
func owners(t *testing.T, entries []metav1.ManagedFieldsEntry) map[string]string {
	t.Helper()
	owned := map[string]string{}
	for _, entry := range entries {
		who := entry.Manager
		if entry.Subresource == "status" {
			who = "status"
		}
		owned[who] += string(entry.FieldsV1.GetRawBytes())
	}
	return owned
}

// Transfer and storage use protobuf, tables and streamed lists.
func TestWire(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "wire")
	startInstance(t, acme, "vm", "wire")

	config, err := tb.RESTConfig(acme)
	require.NoError(t, err)
	httpClient, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	get := func(path, accept string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
		require.NoError(t, err)
		req.Header.Set("Accept", accept)
		resp, err := httpClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		return resp
	}
	const path = "/apis/rack.macrack.io/v1alpha1/namespaces/acme/macnodeleases"

	const protobuf = "application/vnd.kubernetes.protobuf"
	resp := get(path+"/wire", protobuf)
	assert.Equal(t, protobuf, resp.Header.Get("Content-Type"))
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(body), "k8s\x00"))
	assert.Contains(t, get(path, "application/cbor,application/json").Header.Get("Content-Type"), "application/json")

	etcd := etcdClient(t)
	all, err := etcd.Get(t.Context(), "/registry/", clientv3.WithPrefix())
	require.NoError(t, err)
	stored := 0
	for _, kv := range all.Kvs {
		if group := strings.Split(string(kv.Key), "/")[2]; strings.Contains(group, ".") && group != "macrack.io" {
			stored++
			assert.True(t, strings.HasPrefix(string(kv.Value), "k8s\x00"), "%s is not stored in protobuf", kv.Key)
		}
	}
	assert.Greater(t, stored, 10)

	// A streamed list: first the existing objects, then a bookmark, then changes.
	stream := get(path+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "application/json")
	events := bufio.NewScanner(stream.Body)
	events.Buffer(nil, 1<<20)
	next := func() (event struct {
		Type   string
		Object metav1.PartialObjectMetadata
	}) {
		require.True(t, events.Scan(), "the stream ended: %v", events.Err())
		require.NoError(t, json.Unmarshal(events.Bytes(), &event))
		return event
	}
	first := next()
	assert.Equal(t, "ADDED", first.Type)
	assert.Equal(t, "wire", first.Object.Name)
	bookmark := next()
	assert.Equal(t, "BOOKMARK", bookmark.Type)
	assert.Equal(t, "true", bookmark.Object.Annotations[metav1.InitialEventsAnnotationKey])
	kubectl(t, acme, "label", leases, "wire", "seen=yes")
	changed := next()
	for changed.Type == "BOOKMARK" {
		changed = next()
	}
	assert.Equal(t, "MODIFIED", changed.Type)
	assert.Equal(t, "yes", changed.Object.Labels["seen"])
}
