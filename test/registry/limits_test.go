package registry

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

// maxRequest is etcd's default limit for the size of a request.
const maxRequest = 1536 << 10

// full returns metadata at its limits: many short entries, which protobuf doubles, and long ones.
func full(namespace, name string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, GenerateName: strings.Repeat("g", 63), Labels: map[string]string{}, Annotations: map[string]string{}}
	const overhead, short = 12, 200 // bytes of an entry as stored, and entries
	room := 64 << 10
	for i := 0; room > 3+63+overhead; i++ {
		key, value := strconv.FormatInt(int64(36*36+i), 36), ""
		if i > short {
			value = strings.Repeat("v", 63)
		}
		meta.Labels[key] = value
		if i < short {
			meta.Annotations[key] = ""
		}
		room -= len(key) + len(value) + overhead
	}
	meta.Annotations["long"] = strings.Repeat("v", 64<<10-short*(3+overhead)-len("long")-overhead)
	for i := range 31 {
		meta.Finalizers = append(meta.Finalizers, fmt.Sprintf("%s.example.com/%063d", strings.Repeat("f.", 120)+"f", i))
	}
	return meta
}

func fullConditions() (conditions []metav1.Condition) {
	for i := range 30 {
		conditions = append(conditions, metav1.Condition{
			Type: fmt.Sprintf("example.com/Condition%d", i), Status: metav1.ConditionTrue, Reason: strings.Repeat("R", 1024),
			Message: strings.Repeat("m", 32<<10), LastTransitionTime: metav1.NewTime(noon),
		})
	}
	return conditions
}

// applies makes 27 server-side applies of the annotations of an object by different managers.
func applies(t *testing.T, apiVersion, kind string, meta metav1.ObjectMeta, apply func(body []byte, options metav1.PatchOptions) error) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": meta.Name, "annotations": meta.Annotations},
	})
	require.NoError(t, err)
	force := true
	for i := range 27 {
		require.NoError(t, apply(body, metav1.PatchOptions{FieldManager: fmt.Sprintf("manager-%d", i), Force: &force}))
	}
}

// storedSize returns the size of an object in etcd.
func (f *fleet) storedSize(key string) int {
	f.t.Helper()
	resp, err := f.etcd.Client.Get(f.t.Context(), "/registry/"+key)
	require.NoError(f.t, err)
	require.Len(f.t, resp.Kvs, 1, key)
	return len(resp.Kvs[0].Value)
}

// Every verb of the life cycle works with objects that are at all of their limits at once. A
// transaction of an instance, its lease, its Mac and a record must fit into etcd's limit, whatever
// users and guests have put into each.
func TestLifeCycleAtEveryLimit(t *testing.T) {
	f := newFleet(t, 1)
	ctx := t.Context()
	f.mac("mac-1", "C07AAAAA0001")
	leases, instances, nodes := f.acme.RackV1alpha1().MacNodeLeases("acme"), f.acme.InstanceV1alpha1().MacOSInstances("acme"), f.admin.RackV1alpha1().MacNodes()

	node := f.node("mac-1")
	labelled := full("", "mac-1")
	node.Labels, node.Annotations, node.Finalizers = labelled.Labels, labelled.Annotations, labelled.Finalizers
	_, err := nodes.Update(ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)
	applies(t, "rack.macrack.io/v1alpha1", "MacNode", labelled, func(body []byte, options metav1.PatchOptions) error {
		_, err := nodes.Patch(ctx, "mac-1", types.ApplyPatchType, body, options)
		return err
	})
	f.report("mac-1", func(status *rackv1alpha1.MacNodeStatus) {
		status.Conditions = append(status.Conditions, fullConditions()[1:]...)
		for i := range 256 {
			name := fmt.Sprintf("%s%061d", strings.Repeat(strings.Repeat("i", 63)+".", 3), i)
			status.Images = append(status.Images, rackv1alpha1.CachedImage{Name: name, Digest: "sha256:" + strings.Repeat("0", 64), SizeBytes: 1 << 40})
		}
	})

	lease := &rackv1alpha1.MacNodeLease{ObjectMeta: full("acme", "build"), Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", MinimumDuration: scalar.NewDuration(24 * time.Hour)}}
	for i := range 16 {
		lease.OwnerReferences = append(lease.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: strings.Repeat("o", 960), UID: types.UID(fmt.Sprint(i))})
		lease.Spec.PrefetchImages = append(lease.Spec.PrefetchImages, fmt.Sprintf("%s%061d", strings.Repeat(strings.Repeat("i", 63)+".", 3), i))
	}
	_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	require.NoError(t, err)
	applies(t, "rack.macrack.io/v1alpha1", "MacNodeLease", lease.ObjectMeta, func(body []byte, options metav1.PatchOptions) error {
		_, err := leases.Patch(ctx, "build", types.ApplyPatchType, body, options)
		return err
	})
	require.NoError(t, f.bind("acme", "build", "mac-1"))
	lease = f.getLease("acme", "build")
	lease.Status.Conditions = append(lease.Status.Conditions, fullConditions()[3:]...)
	_, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(ctx, lease, metav1.UpdateOptions{})
	require.NoError(t, err)

	machineID := func(n int) string { return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%03072d", n)) }
	start := func(name string, n int) {
		t.Helper()
		i := newInstance("acme", name, "build")
		i.ObjectMeta = full("acme", name)
		i.Spec.StartupScript = strings.Repeat("s", 64<<10)
		for range 32 {
			key := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ "
			i.Spec.SSHAuthorizedKeys = append(i.Spec.SSHAuthorizedKeys, key+strings.Repeat("k", 2048-len(key)))
		}
		_, err := instances.Create(ctx, i, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err, "create, as a dry run")
		_, err = instances.Create(ctx, i, metav1.CreateOptions{})
		require.NoError(t, err, "create")
		applies(t, "instance.macrack.io/v1alpha1", "MacOSInstance", i.ObjectMeta, func(body []byte, options metav1.PatchOptions) error {
			_, err := instances.Patch(ctx, name, types.ApplyPatchType, body, options)
			return err
		})
		for _, phase := range []instancev1alpha1.MacOSInstancePhase{instancev1alpha1.MacOSInstanceStarting, instancev1alpha1.MacOSInstanceRunning} {
			require.NoError(t, f.write(f.agent("mac-1"), "acme", name, func(status *instancev1alpha1.MacOSInstanceStatus) {
				status.Phase = phase
				_, status.MACAddress = identityOf(n)
				status.MachineID = machineID(n)
				status.Message = strings.Repeat("m", 1<<20)
				status.Startup = &instancev1alpha1.StartupResult{Output: strings.Repeat("o", 1<<16)}
				status.Conditions = append(status.Conditions[:min(1, len(status.Conditions))], fullConditions()...)
			}), "%s", phase)
		}
	}
	start("first", 1)
	start("second", 2)

	size := func() int {
		return f.storedSize("instance.macrack.io/macosinstances/acme/second") + f.storedSize("rack.macrack.io/macnodeleases/acme/build") + f.storedSize("rack.macrack.io/macnodes/mac-1")
	}
	assert.Greater(t, size(), 900<<10, "the objects are at their limits")
	assert.Less(t, size(), maxRequest-(64<<10), "with room for a record")

	i := f.getInstance("acme", "first")
	i.Labels["updated"] = "true"
	delete(i.Labels, "100")
	_, err = instances.Update(ctx, i, metav1.UpdateOptions{})
	require.NoError(t, err, "update")

	_, err = instances.Stop(ctx, "first", &instancev1alpha1.MacOSInstanceStop{Reason: strings.Repeat("r", 256)}, metav1.CreateOptions{})
	require.NoError(t, err, "stop")
	f.stopped("mac-1", "acme", "first")
	require.NoError(t, instances.Delete(ctx, "first", metav1.DeleteOptions{}), "delete")
	require.NoError(t, instances.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), "deletecollection")
	f.stopped("mac-1", "acme", "second")

	require.NoError(t, leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), "hold")
	require.Equal(t, rackv1alpha1.MacNodeLeaseHeld, f.getLease("acme", "build").Status.Phase)
	lease = f.getLease("acme", "build")
	lease.Spec.MinimumDuration = scalar.NewDuration(25 * time.Hour)
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	require.NoError(t, err, "lengthen")

	f.setTime(noon.Add(26 * time.Hour))
	lease = f.getLease("acme", "build")
	lease.Status.Phase = rackv1alpha1.MacNodeLeaseReleasing
	_, err = f.controllers.RackV1alpha1().MacNodeLeases("acme").UpdateStatus(ctx, lease, metav1.UpdateOptions{})
	require.NoError(t, err, "begin the release")
	f.scrub("mac-1")
	f.report("mac-1", func(status *rackv1alpha1.MacNodeStatus) {
		for range 64 {
			status.Scrub.Removed = append(status.Scrub.Removed, strings.Repeat("r", 1<<12))
		}
	})
	assert.Less(t, size(), maxRequest-(64<<10), "with room for a record")
	require.NoError(t, f.release("acme", "build", "macrack.io/unleased:NoSchedule"), "release")

	for _, name := range []string{"first", "second"} {
		i := f.getInstance("acme", name)
		i.Finalizers = nil
		_, err = f.admin.InstanceV1alpha1().MacOSInstances("acme").Update(ctx, i, metav1.UpdateOptions{})
		require.NoError(t, err, "the last finalizer of an instance")
	}
	lease = f.getLease("acme", "build")
	lease.Finalizers = nil
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	require.NoError(t, err, "the last finalizer of a lease")
	node = f.node("mac-1")
	node.Finalizers = nil
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, nodes.Delete(ctx, "mac-1", metav1.DeleteOptions{}), "remove it from the fleet")
}
