package registry

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// namespaces are the existing namespaces with their UIDs.
type namespaces struct {
	mu   sync.Mutex
	uids map[string]types.UID
}

func (n *namespaces) make(name string, uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.uids[name] = uid
}

func (n *namespaces) find(_ context.Context, name string) (types.UID, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uids[name], nil
}

func newFleetWithNamespaces(t *testing.T) (*fleet, *namespaces) {
	n := &namespaces{uids: map[string]types.UID{"acme": "acme-1", "globex": "globex-1"}}
	return newFleet(t, 1, func(o *apiserver.Options) { o.Namespaces = n.find }), n
}

// A namespace created again under its name may belong to another tenant. For this tenant, the
// leases and instances of the former one do not exist.
func TestNextOwnerOfNamespace(t *testing.T) {
	f, n := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	old := f.lease("acme", "old", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "old")))
	f.start("mac-1", "acme", "vm", 1)
	f.deleteLease("acme", "old")
	held := f.getLease("acme", "old")
	require.Equal(t, rackv1alpha1.MacNodeLeaseHeld, held.Status.Phase)
	require.EqualValues(t, "acme-1", held.Status.NamespaceUID)

	former, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Watch(t.Context(), metav1.ListOptions{ResourceVersion: held.ResourceVersion})
	require.NoError(t, err)
	defer former.Stop()
	n.make("acme", "acme-2")

	vm := f.getInstance("acme", "vm")
	require.EqualValues(t, "acme-1", vm.Status.NamespaceUID)
	before := f.etcd.Revision(t)

	server, client := f.servers[0], f.servers[0].HTTPClient(t, "acme", "system:authenticated")
	const rackPath, instancePath = "/apis/rack.macrack.io/v1alpha1/namespaces/acme/macnodeleases", "/apis/instance.macrack.io/v1alpha1/namespaces/acme/macosinstances"
	send := func(method, path, contentType, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL("%s", path), bytes.NewReader([]byte(body)))
		require.NoError(t, err)
		req.Header.Set("Content-Type", contentType)
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(data)
	}
	const merge, jsonPatch, apply = "application/merge-patch+json", "application/json-patch+json", "application/apply-patch+yaml"
	leaseBody := `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":"old"},"spec":{"className":"base","minimumDuration":"9000h"}}`
	for _, verb := range []struct {
		name, method, path, contentType, body string
		code                                  int
	}{
		{"get", "GET", rackPath + "/old", "", "", 404},
		{"get the status", "GET", rackPath + "/old/status", "", "", 404},
		{"lengthen by a merge patch", "PATCH", rackPath + "/old", merge, `{"spec":{"minimumDuration":"9000h"}}`, 404},
		{"lengthen by a JSON patch", "PATCH", rackPath + "/old", jsonPatch, `[{"op":"add","path":"/spec/minimumDuration","value":"9000h"}]`, 404},
		{"lengthen by PUT", "PUT", rackPath + "/old", "application/json", leaseBody, 404},
		{"lengthen by apply", "PATCH", rackPath + "/old?fieldManager=x&force=true", apply, leaseBody, 409},
		{"shorten", "PATCH", rackPath + "/old", merge, `{"spec":{"minimumDuration":"1h"}}`, 404},
		{"a dry run", "PATCH", rackPath + "/old?dryRun=All", merge, `{"spec":{"minimumDuration":"9000h"}}`, 404},
		{"remove the finalizer", "PATCH", rackPath + "/old", merge, `{"metadata":{"finalizers":null}}`, 404},
		{"label", "PATCH", rackPath + "/old", merge, `{"metadata":{"labels":{"a":"b"}}}`, 404},
		{"patch the status", "PATCH", rackPath + "/old/status", merge, `{"status":{"phase":"Releasing"}}`, 404},
		{"delete", "DELETE", rackPath + "/old", "", "", 404},
		{"bind", "POST", rackPath + "/old/binding", "application/json", `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseBinding","nodeName":"mac-2"}`, 404},
		{"release", "POST", rackPath + "/old/release", "application/json", `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseRelease"}`, 404},
		{"get the instance", "GET", instancePath + "/vm", "", "", 404},
		{"patch the instance", "PATCH", instancePath + "/vm", merge, `{"metadata":{"labels":{"a":"b"}}}`, 404},
		{"patch the instance's status", "PATCH", instancePath + "/vm/status", merge, `{"status":{"phase":"Stopped"}}`, 404},
		{"stop the instance", "POST", instancePath + "/vm/stop", "application/json", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop"}`, 404},
		{"delete the instance", "DELETE", instancePath + "/vm", "", "", 404},
		{"delete all leases", "DELETE", rackPath, "", "", 200},
		{"delete all instances", "DELETE", instancePath, "", "", 200},
		{"list", "GET", rackPath, "", "", 200},
		{"list by a field", "GET", rackPath + "?fieldSelector=status.namespaceUID%3Dacme-1", "", "", 200},
		{"list from the cache", "GET", rackPath + "?resourceVersion=0", "", "", 200},
		{"list instances", "GET", instancePath, "", "", 200},
		{"watch from the beginning", "GET", rackPath + "?watch=1&timeoutSeconds=1&resourceVersion=1", "", "", 200},
		{"watch with the initial events", "GET", rackPath + "?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "", "", 200},
		{"watch instances", "GET", instancePath + "?watch=1&timeoutSeconds=1&resourceVersion=0", "", "", 200},
		{"run an instance on it", "POST", instancePath, "application/json", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{"name":"mine"},"spec":{"leaseName":"old","className":"small","imageName":"macos-26"}}`, 403},
	} {
		t.Run(verb.name, func(t *testing.T) {
			code, body := send(verb.method, verb.path, verb.contentType, verb.body)
			assert.Equal(t, verb.code, code, body)
			for _, secret := range []string{"C07AAAAA0001", string(old.UID), string(vm.UID), "acme-1", "mac-1", held.Status.EarliestReleaseAt.UTC().Format(time.RFC3339), `"24h`} {
				assert.NotContains(t, body, secret)
			}
		})
	}
	assert.Equal(t, held, f.getLease("acme", "old"), "the lease has not changed")
	assert.Equal(t, vm, f.getInstance("acme", "vm"))
	assert.Equal(t, 1, f.etcd.Transactions(t, before), "one record, for the instance")

	t.Run("the new owner uses its own objects", func(t *testing.T) {
		next := f.lease("acme", "next", "mac-2")
		assert.EqualValues(t, "acme-2", next.Status.NamespaceUID)
		list, err := f.acme.RackV1alpha1().MacNodeLeases("acme").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		assert.Equal(t, "next", list.Items[0].Name)
		require.NoError(t, f.create(t.Context(), newInstance("acme", "vm-2", "next")))
		require.NoError(t, f.acme.RackV1alpha1().MacNodeLeases("acme").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", "next").Status.Phase)
	})
	t.Run("the former owner's watch does not see it", func(t *testing.T) {
		for {
			select {
			case event := <-former.ResultChan():
				lease, ok := event.Object.(*rackv1alpha1.MacNodeLease)
				require.True(t, ok)
				assert.Equal(t, "old", lease.Name)
			default:
				return
			}
		}
	})
	t.Run("administrators and controllers can end it", func(t *testing.T) {
		for _, client := range []versioned.Interface{f.admin, f.controllers} {
			list, err := client.RackV1alpha1().MacNodeLeases("acme").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			assert.Len(t, list.Items, 2)
		}
		f.setTime(noon.Add(25 * time.Hour))
		lease := f.getLease("acme", "old")
		lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
		_, err := f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		require.NoError(t, err)
		_, err = f.controllers.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "vm", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
		require.NoError(t, err)
		f.stopped("mac-1", "acme", "vm")
		f.scrub("mac-1")
		require.NoError(t, f.release("acme", "old", unleased))
		_, err = f.admin.RackV1alpha1().MacNodeLeases("acme").Get(t.Context(), "old", metav1.GetOptions{})
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

// Only the server sets the namespace UID of a lease and an instance.
func TestNamespaceUIDCannotBeForged(t *testing.T) {
	f, _ := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	lease := newLease("acme", "build")
	lease.Status.NamespaceUID = "globex-1"
	lease.Status.RequestedBy = &rackv1alpha1.LeaseRequester{Username: "globex"}
	lease, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), lease, metav1.CreateOptions{})
	require.NoError(t, err)
	own := func(lease *rackv1alpha1.MacNodeLease) {
		t.Helper()
		assert.EqualValues(t, "acme-1", lease.Status.NamespaceUID)
		assert.Equal(t, &rackv1alpha1.LeaseRequester{Username: "acme", UID: "uid-of-acme"}, lease.Status.RequestedBy)
	}
	own(lease)
	for _, status := range []bool{false, true} {
		lease = f.getLease("acme", "build")
		lease.Status.NamespaceUID, lease.Status.RequestedBy = "globex-1", nil
		leases := f.controllers.RackV1alpha1().MacNodeLeases("acme")
		if status {
			lease, err = leases.UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		} else {
			lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		}
		require.NoError(t, err)
		own(lease)
	}
	require.NoError(t, f.bind("acme", "build", "mac-1"))
	own(f.getLease("acme", "build"))
	bound := f.records("acme")[0]
	assert.Equal(t, "system:serviceaccount:macrack-system:macrack-controllers", bound.Actor.Username)
	assert.Equal(t, &rackv1alpha1.AuditActor{Username: "acme", UID: "uid-of-acme"}, bound.Details.RequestedBy)

	i := newInstance("acme", "vm", "build")
	i.Status.NamespaceUID = "globex-1"
	require.NoError(t, f.create(t.Context(), i))
	require.NoError(t, f.write(f.agent("mac-1"), "acme", "vm", func(s *instancev1alpha1.MacOSInstanceStatus) { s.NamespaceUID = "globex-1" }))
	assert.EqualValues(t, "acme-1", f.getInstance("acme", "vm").Status.NamespaceUID)
}

func TestLeaseWithoutNamespace(t *testing.T) {
	f, _ := newFleetWithNamespaces(t)
	_, err := f.acme.RackV1alpha1().MacNodeLeases("nowhere").Create(t.Context(), newLease("nowhere", "build"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	assert.True(t, strings.Contains(err.Error(), "nowhere"))
}

// The refusal of an instance on a lease of an earlier namespace does not describe the lease, and
// neither does its record.
func TestRefusalDoesNotDescribeLeaseOfEarlierNamespace(t *testing.T) {
	f, n := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "old", "mac-1")
	for _, name := range []string{"secret-1", "secret-2"} {
		require.NoError(t, f.create(t.Context(), newInstance("acme", name, "old")))
	}
	assert.ErrorContains(t, f.create(t.Context(), newInstance("acme", "mine", "old")), "secret-1", "the owner is told the instances of its lease")
	n.make("acme", "acme-2")
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "new"), metav1.CreateOptions{})
	require.NoError(t, err)
	err = f.create(t.Context(), newInstance("acme", "mine", "old"))
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "from an earlier namespace")
	assert.NotContains(t, err.Error(), "secret")

	records, err := f.acme.RackV1alpha1().AuditRecords("acme").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, records.Items, 1)
	record := records.Items[0]
	assert.Equal(t, "LeaseOfEarlierNamespace", record.Details.Reason)
	assert.Empty(t, record.Chassis, "the Mac is another tenant's")
	assert.Equal(t, &rackv1alpha1.AuditReference{Namespace: "acme", Name: "old"}, record.Lease, "as in the request")
}
