package registry

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/registrytest"
)

// corrupt replaces the value of a key by data, and returns the function that restores it.
func (f *fleet) corrupt(key, data string) (restore func()) {
	f.t.Helper()
	key = "/registry/" + key
	resp, err := f.etcd.Client.Get(f.t.Context(), key)
	require.NoError(f.t, err)
	require.Len(f.t, resp.Kvs, 1, key)
	put := func(data string) {
		f.t.Helper()
		_, err := f.etcd.Client.Put(f.t.Context(), key, data)
		require.NoError(f.t, err)
	}
	put(data)
	return func() { put(string(resp.Kvs[0].Value)) }
}

// next returns the next event of an object.
func next(t *testing.T, w watch.Interface, name string) watch.Event {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case event, open := <-w.ResultChan():
			require.True(t, open, "the watch ended")
			obj, ok := event.Object.(metav1.Object)
			require.True(t, ok, "%v", event.Object)
			if obj.GetName() == name {
				return event
			}
		case <-timeout:
			t.Fatal("no event of " + name)
		}
	}
}

// An object that cannot be decoded hides no other: lists omit it, and watches show it as deleted.
// It still counts: reads of the object fail, and requests that depend on it are refused.
func TestObjectsThatCannotBeDecodedHideNoOthers(t *testing.T) {
	f := newFleet(t, 2)
	ctx := t.Context()
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.mac("mac-3", "C07AAAAA0003")
	f.lease("acme", "build", "mac-1")
	f.lease("acme", "broken", "mac-2")
	for n, name := range []string{"first", "second"} {
		require.NoError(t, f.create(ctx, newInstance("acme", name, "build")))
		f.start("mac-1", "acme", name, n)
	}
	instances := f.admin.InstanceV1alpha1().MacOSInstances("acme")
	versions, err := instances.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	watched, err := instances.Watch(ctx, metav1.ListOptions{ResourceVersion: versions.ResourceVersion})
	require.NoError(t, err)
	defer watched.Stop()

	// The agent of the Mac watches by a field.
	selected, err := f.agent("mac-1").InstanceV1alpha1().MacOSInstances("").Watch(ctx, metav1.ListOptions{ResourceVersion: versions.ResourceVersion, FieldSelector: "status.nodeName=mac-1"})
	require.NoError(t, err)
	defer selected.Stop()

	records := f.records("acme")
	require.NotEmpty(t, records)
	const garbage = "k8s\x00\xff\xff\xff\xff"
	restore := f.corrupt("instance.macrack.io/macosinstances/acme/first", garbage)
	f.corrupt("rack.macrack.io/macnodeleases/acme/broken", "{")
	f.corrupt("rack.macrack.io/macnodes/mac-3", `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeClass","metadata":{"name":"mac-3"}}`)
	f.corrupt("rack.macrack.io/auditrecords/acme/"+records[0].Name, "")

	assert.Equal(t, watch.Deleted, next(t, watched, "first").Type)
	assert.Equal(t, watch.Deleted, next(t, selected, "first").Type)
	require.NoError(t, f.write(f.agent("mac-1"), "acme", "second", func(status *instancev1alpha1.MacOSInstanceStatus) { status.Message = "on" }))
	assert.Equal(t, watch.Modified, next(t, watched, "second").Type, "the watch continues")
	assert.Equal(t, watch.Modified, next(t, selected, "second").Type, "the watch continues")

	f.servers = append(f.servers, registrytest.StartServer(t, f.etcd, f.clock)) // which reads everything from etcd
	for replica := range f.servers {
		client := f.jsonClient(replica)
		for _, options := range []metav1.ListOptions{{}, {ResourceVersion: "0"}, {Limit: 1}, {FieldSelector: "metadata.namespace=acme"}} {
			var names []string
			for {
				list, err := client.InstanceV1alpha1().MacOSInstances("").List(ctx, options)
				require.NoError(t, err)
				for _, i := range list.Items {
					names = append(names, i.Name)
				}
				if options.Continue = list.Continue; options.Continue == "" {
					break
				}
				options.ResourceVersion = ""
			}
			assert.Equal(t, []string{"second"}, names, "%v", options)
		}
		leases, err := client.RackV1alpha1().MacNodeLeases("").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		assert.Len(t, leases.Items, 1)
		nodes, err := client.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		assert.Len(t, nodes.Items, 2)
		listed, err := client.RackV1alpha1().AuditRecords("acme").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		assert.Len(t, listed.Items, len(records)-1)
	}
	all, err := f.admin.RackV1alpha1().AuditRecords("acme").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	defer all.Stop()
	next(t, all, records[len(records)-1].Name)

	report, err := f.admin.RackV1alpha1().ComplianceReports().Get(ctx, "90d", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, rackv1alpha1.ComplianceIncomplete, report.Status.Verdict, "a record that cannot be decoded is a gap")

	_, err = instances.Get(ctx, "first", metav1.GetOptions{})
	assert.True(t, apierrors.IsInternalError(err), "%v", err)
	assert.True(t, apierrors.IsInternalError(instances.Delete(ctx, "first", metav1.DeleteOptions{})), "its virtual machine may run")
	require.NoError(t, instances.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, metav1.ListOptions{}))
	assert.Error(t, f.create(ctx, newInstance("acme", "first", "build")), "its name is taken")
	assert.True(t, apierrors.IsForbidden(f.create(ctx, newInstance("acme", "third", "build"))), "its slot is taken")
	err = f.create(ctx, newInstance("acme", "third", "broken"))
	require.Error(t, err)
	assert.False(t, apierrors.IsForbidden(err), "the lease is not known to be absent: %v", err)
	_, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Create(ctx, newLease("acme", "other"), metav1.CreateOptions{})
	require.NoError(t, err)
	assert.Error(t, f.bind("acme", "other", "mac-2"), "the Mac belongs to the lease that cannot be decoded")
	assert.Error(t, f.bind("acme", "other", "mac-3"))

	metrics, err := f.servers[0].HTTPClient(t, "admin", "system:masters").Get(f.servers[0].URL("/metrics"))
	require.NoError(t, err)
	defer metrics.Body.Close()
	body, err := io.ReadAll(metrics.Body)
	require.NoError(t, err)
	assert.Contains(t, string(body), `macrack_storage_undecodable_objects_total{resource="macosinstances.instance.macrack.io"}`)

	restore()
	assert.Equal(t, watch.Added, next(t, watched, "first").Type)
	assert.Equal(t, watch.Added, next(t, selected, "first").Type)
	_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Stop(ctx, "first", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.stopped("mac-1", "acme", "first")
	assert.Equal(t, rackv1alpha1.MacNodeLeased, f.node("mac-1").Status.Phase)
}
