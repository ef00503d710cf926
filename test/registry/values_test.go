package registry

import (
	"context"

	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/test/registrytest"
)

// farTimes are times that JSON cannot represent. The years of the last ones wrap around.
var farTimes = []int64{253402300800, 1e12, -62167219201, math.MaxInt64, math.MinInt64}

func farTime(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }

// withFarTime gives an object managed fields with a time that JSON cannot represent.
func withFarTime(obj metav1.Object, seconds int64) {
	at := farTime(seconds)
	version := rackv1alpha1.SchemeGroupVersion
	if _, ok := obj.(*instancev1alpha1.MacOSInstance); ok {
		version = instancev1alpha1.SchemeGroupVersion
	}
	obj.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "poison", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version.String(), Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:x":{}}}}`),
	}})
}

// Every client can read every stored value: other values are refused, for all writers and
// encodings.
func TestValuesThatAReaderCannotCarryAreRefused(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	f.start("mac-1", "acme", "first", 1)
	refused := func(err error, at string, arguments ...any) {
		t.Helper()
		if assert.True(t, apierrors.IsInvalid(err), "%v: %v", arguments, err) {
			assert.ErrorContains(t, err, at, arguments...)
		}
	}
	for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
		for _, seconds := range farTimes {
			i := f.getInstance("acme", "first")
			withFarTime(i, seconds)
			_, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Update(t.Context(), i, metav1.UpdateOptions{DryRun: dryRun})
			refused(err, "metadata.managedFields[0].time", seconds)

			lease := f.getLease("acme", "build")
			withFarTime(lease, seconds)
			_, err = f.acme.RackV1alpha1().MacNodeLeases("acme").Update(t.Context(), lease, metav1.UpdateOptions{DryRun: dryRun})
			refused(err, "metadata.managedFields[0].time", seconds)

			node := f.node("mac-1")
			meta.FindStatusCondition(node.Status.Conditions, rackv1alpha1.MacNodeSlotsHealthy).LastTransitionTime = farTime(seconds)
			_, err = f.agent("mac-1").RackV1alpha1().MacNodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{DryRun: dryRun})
			refused(err, "].lastTransitionTime", seconds)

			i = f.getInstance("acme", "first")
			meta.SetStatusCondition(&i.Status.Conditions, metav1.Condition{Type: "Poisoned", Status: metav1.ConditionTrue, Reason: "Poisoned", LastTransitionTime: farTime(seconds)})
			_, err = f.controllers.InstanceV1alpha1().MacOSInstances("acme").UpdateStatus(t.Context(), i, metav1.UpdateOptions{DryRun: dryRun})
			refused(err, "status.conditions", seconds)
		}
		for _, text := range []string{"a\x00b", "a\xffb", "\xed\xa0\x80"} {
			i := f.getInstance("acme", "first")
			i.Annotations = map[string]string{"note": text}
			_, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Update(t.Context(), i, metav1.UpdateOptions{DryRun: dryRun})
			refused(err, "metadata.annotations[note]", text)

			created := newInstance("acme", "second", "build")
			created.Spec.StartupScript = text
			_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Create(t.Context(), created, metav1.CreateOptions{DryRun: dryRun})
			refused(err, "spec.startupScript", text)
		}
	}
	assert.Empty(t, f.getInstance("acme", "first").Annotations)
}

// jsonClient returns a typed client that speaks JSON.
func (f *fleet) jsonClient(replica int) versioned.Interface {
	f.t.Helper()
	config := f.servers[replica].Config("admin", "system:masters")
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := versioned.NewForConfig(config)
	require.NoError(f.t, err)
	return client
}

// rewrite changes an object directly in etcd.
func (f *fleet) rewrite(key string, obj runtime.Object, change func()) {
	f.t.Helper()
	key = "/registry/" + key
	resp, err := f.etcd.Client.Get(f.t.Context(), key)
	require.NoError(f.t, err)
	require.Len(f.t, resp.Kvs, 1)
	decode(f.t, resp.Kvs[0].Value, obj)
	change()
	gvk := obj.GetObjectKind().GroupVersionKind()
	require.NotEmpty(f.t, gvk.Kind)
	data, err := runtime.Encode(storageSerializer(f.t).(runtime.Encoder), obj)
	require.NoError(f.t, err)
	_, err = f.etcd.Client.Put(f.t.Context(), key, string(data))
	require.NoError(f.t, err)
}

// An object stored before such values were refused breaks no reader: neither lists nor watches nor
// the server itself. It can still be stopped and deleted, which repairs it.
func TestCorruptObjectInEtcdHidesNoOthers(t *testing.T) {
	f := newFleet(t, 2)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	require.NoError(t, f.create(t.Context(), newInstance("acme", "first", "build")))
	f.start("mac-1", "acme", "first", 1)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch, err := f.jsonClient(0).InstanceV1alpha1().MacOSInstances("").Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer watch.Stop()

	i, lease, node := &instancev1alpha1.MacOSInstance{}, &rackv1alpha1.MacNodeLease{}, &rackv1alpha1.MacNode{}
	f.rewrite("instance.macrack.io/macosinstances/acme/first", i, func() {
		withFarTime(i, 1e12)
		i.Status.Message = "a\xff\x00"
		i.Annotations = map[string]string{"a\xff": "\x00"}
	})
	f.rewrite("rack.macrack.io/macnodeleases/acme/build", lease, func() {
		withFarTime(lease, math.MaxInt64)
		lease.ManagedFields[0].FieldsV1.SetRawString("{")
	})
	f.rewrite("rack.macrack.io/macnodes/mac-1", node, func() {
		node.Status.Conditions[0].LastTransitionTime = farTime(-1e12)
		node.Status.Conditions[0].Message = "\xff"
	})
	for poisoned := false; !poisoned; {
		select {
		case event, open := <-watch.ResultChan():
			require.True(t, open)
			seen, ok := event.Object.(*instancev1alpha1.MacOSInstance)
			require.True(t, ok, "%v", event.Object)
			poisoned = seen.Status.Message == "a\uFFFD\uFFFD"
		case <-ctx.Done():
			t.Fatal("the change was not seen")
		}
	}
	f.servers = append(f.servers, registrytest.StartServer(t, f.etcd, f.clock)) // which reads everything from etcd
	for replica := range f.servers {
		client := f.jsonClient(replica)
		for _, version := range []string{"", "0"} {
			options := metav1.ListOptions{ResourceVersion: version}
			instances, err := client.InstanceV1alpha1().MacOSInstances("").List(t.Context(), options)
			require.NoError(t, err)
			assert.Len(t, instances.Items, 1)
			leases, err := client.RackV1alpha1().MacNodeLeases("").List(t.Context(), options)
			require.NoError(t, err)
			assert.Len(t, leases.Items, 1)
			nodes, err := client.RackV1alpha1().MacNodes().List(t.Context(), options)
			require.NoError(t, err)
			assert.Len(t, nodes.Items, 1)
		}
	}
	for _, accept := range []string{"application/json", "application/yaml", runtime.ContentTypeProtobuf, "application/json;as=Table;v=v1;g=meta.k8s.io"} {
		for _, path := range []string{"/apis/instance.macrack.io/v1alpha1/macosinstances", "/apis/rack.macrack.io/v1alpha1/macnodeleases", "/apis/rack.macrack.io/v1alpha1/macnodes"} {
			code, body := f.getAs(t, f.servers[0].URL("%s", path), accept)
			assert.Equal(t, http.StatusOK, code, "%s of %s: %s", accept, path, body)
		}
	}

	_, err = f.acme.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "first", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.stopped("mac-1", "acme", "first")
	f.report("mac-1", func(*rackv1alpha1.MacNodeStatus) {})
	f.deleteLease("acme", "build")
	resp, err := f.etcd.Client.Get(t.Context(), "/registry/rack.macrack.io/macnodeleases/acme/build")
	require.NoError(t, err)
	decode(t, resp.Kvs[0].Value, lease)
	for _, entry := range lease.ManagedFields {
		assert.LessOrEqual(t, entry.Time.UTC().Year(), 9999, "a write must repair it")
	}
}
