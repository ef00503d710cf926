package integration

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/cluster"
)

// The main scenario. A tenant leases a Mac and runs two virtual machines on it; a third is refused.
// No other tenant sees or uses any of it, and the floor holds.
func TestMainJob(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "main-job")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, lease.Status.Phase)
	assert.Contains(t, lease.Finalizers, rules.FinalizerFloor)
	mac := getMac(t, lease.Status.NodeName)
	assert.Equal(t, &rackv1alpha1.LeaseReference{Namespace: acme, Name: "main-job", UID: lease.UID, BoundAt: lease.Status.BoundAt, NamespaceUID: lease.Status.NamespaceUID}, mac.Status.LeaseRef)
	assert.Equal(t, rackv1alpha1.MacNodeLeased, mac.Status.Phase)

	one, two := startInstance(t, acme, "one", "main-job"), startInstance(t, acme, "two", "main-job")
	for _, i := range []*struct{ a, b string }{
		{one.Status.MachineID, two.Status.MachineID},
		{one.Status.MACAddress, two.Status.MACAddress},
		{one.Status.IPAddress.Value, two.Status.IPAddress.Value},
	} {
		assert.NotEmpty(t, i.a)
		assert.NotEmpty(t, i.b)
		assert.NotEqual(t, i.a, i.b)
	}
	for _, i := range []metav1.Object{one, two} {
		require.Len(t, i.GetOwnerReferences(), 1)
		assert.Equal(t, lease.UID, i.GetOwnerReferences()[0].UID)
		assert.Equal(t, []string{rules.FinalizerVM}, i.GetFinalizers())
	}
	assert.EqualValues(t, 2, getMac(t, mac.Name).Status.RunningVMs)
	pods, err := kube(t).CoreV1().Pods(acme).List(t.Context(), metav1.ListOptions{LabelSelector: rules.LabelInstance})
	require.NoError(t, err)
	require.Len(t, pods.Items, 2, "each has a placeholder pod")
	for _, pod := range pods.Items {
		assert.Equal(t, mac.Name, pod.Spec.NodeName)
	}
	assert.Len(t, records(t, acme, rackv1alpha1.InstanceStarted, "main-job"), 2)

	t.Run("a third instance is refused", func(t *testing.T) {
		for _, user := range []string{acme, admin} {
			said := createFails(t, user, instanceManifest("three", "main-job"), "--namespace="+acme)
			assert.Contains(t, said, `rule 1 (two VMs per Mac): lease "main-job" has 2 of 2 instances (["one" "two"]); stop or delete one of them, or lease another Mac`)
		}
		var by []string
		for _, r := range records(t, acme, rackv1alpha1.InstanceRejected, "main-job") {
			assert.Equal(t, rackv1alpha1.LayerRegistry, r.Details.Layer)
			assert.Equal(t, "NoFreeSlot", r.Details.Reason)
			assert.Equal(t, "three", r.Instance.Name)
			by = append(by, r.Actor.Username)
		}
		assert.Equal(t, []string{"acme", "admin"}, by)
		assertNone(t, acme, "three")
	})

	t.Run("another tenant cannot use it", func(t *testing.T) {
		said := createFails(t, globex, instanceManifest("parasite", "main-job"))
		assert.Contains(t, said, `rule 2 (one tenant per Mac): namespace "globex" has no lease "main-job"`)
		said = createFails(t, globex, instanceManifest("parasite", "main-job"), "--namespace="+acme)
		assert.Contains(t, said, "forbidden")
		said = createFails(t, globex, `
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: build}
spec: {className: base, serialNumber: `+lease.Status.SerialNumber+`}
`)
		assert.Contains(t, said, "rule 2 (one tenant per Mac)")
		assert.NotContains(t, said, "acme", "the message must not name the Mac's tenant")
		crossed := records(t, cluster.Namespace, rackv1alpha1.CrossTenantRejected, "main-job") // a namespace that no tenant reads
		require.Len(t, crossed, 1)
		assert.Equal(t, lease.Status.SerialNumber, crossed[0].Chassis.SerialNumber)
		assert.Equal(t, globex, crossed[0].Details.SourceNamespace)
		assert.Equal(t, acme, crossed[0].Tenant)
		assert.Equal(t, "globex", crossed[0].Actor.Username)
		assertNone(t, globex, "parasite")
	})

	t.Run("another tenant cannot see it", func(t *testing.T) {
		c := client(t, globex)
		_, err := c.RackV1alpha1().MacNodeLeases(acme).Get(t.Context(), "main-job", metav1.GetOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().MacNodeLeases(acme).List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().MacNodeLeases("").List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.InstanceV1alpha1().MacOSInstances(acme).List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().AuditRecords(acme).List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().MacNodes().List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().UsageReports(acme).List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().UsageReports("").List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.RackV1alpha1().ComplianceReports().List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		mine, err := c.RackV1alpha1().MacNodeLeases(globex).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		assert.Empty(t, mine.Items)
		stdout, _ := kubectl(t, globex, "get", leases+","+instances+",auditrecords", "-o", "yaml")
		assert.NotContains(t, stdout, string(lease.UID))
		_, err = c.RackV1alpha1().MacNodeClasses().List(t.Context(), metav1.ListOptions{})
		assert.NoError(t, err, "all users may read the catalogue")
	})

	t.Run("tenants write no status and no binding", func(t *testing.T) {
		c := client(t, acme)
		_, err := c.RackV1alpha1().MacNodeLeases(acme).UpdateStatus(t.Context(), lease, metav1.UpdateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		for _, subresource := range []string{"binding", "release"} {
			err := c.RackV1alpha1().RESTClient().Post().Namespace(acme).Resource("macnodeleases").Name("main-job").SubResource(subresource).
				Body([]byte(`{}`)).SetHeader("Content-Type", "application/json").Do(t.Context()).Error()
			assert.True(t, apierrors.IsForbidden(err), "%s: %v", subresource, err)
		}
		_, err = c.InstanceV1alpha1().MacOSInstances(acme).UpdateStatus(t.Context(), one, metav1.UpdateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
	})

	t.Run("backdating", func(t *testing.T) {
		tampered := len(records(t, acme, rackv1alpha1.FloorTamperRejected, "main-job"))
		c := client(t, admin).RackV1alpha1().MacNodeLeases(acme)
		for name, status := range map[string]string{
			"an early floor":   `{"earliestReleaseAt":"2020-01-02T00:00:00Z"}`,
			"an early binding": `{"boundAt":"2020-01-01T00:00:00Z"}`,
			"both":             `{"boundAt":"2020-01-01T00:00:00Z","earliestReleaseAt":"2020-01-02T00:00:00Z"}`,
			"no floor":         `{"earliestReleaseAt":null}`,
			"no binding":       `{"boundAt":null}`,
			"released":         `{"phase":"Releasing"}`,
			"never bound":      `{"phase":"Pending"}`,
		} {
			_, err := c.Patch(t.Context(), "main-job", types.MergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
			assertTampering(t, err, name)
		}
		_, err := c.Patch(t.Context(), "main-job", types.ApplyPatchType, []byte(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":"main-job"},"status":{"earliestReleaseAt":"2020-01-02T00:00:00Z"}}`),
			metav1.PatchOptions{FieldManager: "thief", Force: new(true)}, "status")
		assertTampering(t, err, "applied")
		emptied := lease.DeepCopy()
		emptied.ResourceVersion, emptied.Status = "", rackv1alpha1.MacNodeLeaseStatus{}
		_, err = c.UpdateStatus(t.Context(), emptied, metav1.UpdateOptions{})
		assertTampering(t, err, "emptied")

		_, err = c.Patch(t.Context(), "main-job", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		assertTampering(t, err, "finalizers removed")
		_, err = c.Patch(t.Context(), "main-job", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{})
		assertTampering(t, err, "finalizers removed by a JSON patch")
		// Tools that know only their own finalizers write a list without the floor's: the server
		// keeps its own.
		for _, finalizer := range []string{"example.com/other", "orphan"} {
			patched, err := c.Patch(t.Context(), "main-job", types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+finalizer+`"]}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(t, err, finalizer)
			assert.Subset(t, patched.Finalizers, lease.Finalizers, finalizer)
		}

		now := getLease(t, acme, "main-job")
		assert.Equal(t, lease.Status.BoundAt, now.Status.BoundAt)
		assert.Equal(t, lease.Status.EarliestReleaseAt, now.Status.EarliestReleaseAt)
		assert.Equal(t, lease.Finalizers, now.Finalizers)
		rejected := records(t, acme, rackv1alpha1.FloorTamperRejected, "main-job")
		assert.Greater(t, len(rejected), tampered)
		for _, r := range rejected {
			assert.Equal(t, lease.Status.SerialNumber, r.Chassis.SerialNumber)
			assert.Equal(t, "admin", r.Actor.Username)
		}
	})

	t.Run("tenants cannot bind or release by hand", func(t *testing.T) {
		for subresource, body := range map[string]string{
			"release": `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseRelease","nodeTaints":["macrack.io/unleased:NoSchedule"]}`,
			"binding": `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseBinding","nodeName":"mac-3"}`,
		} {
			err := client(t, admin).RackV1alpha1().RESTClient().Post().Namespace(acme).Resource("macnodeleases").Name("main-job").SubResource(subresource).
				SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
			var status apierrors.APIStatus
			require.ErrorAs(t, err, &status, subresource)
			assert.Contains(t, []int32{http.StatusForbidden, http.StatusConflict}, status.Status().Code, "%s: %v", subresource, err)
		}
		assert.Equal(t, lease.UID, getMac(t, mac.Name).Status.LeaseRef.UID)
		_, err := client(t, admin).RackV1alpha1().MacNodes().Patch(t.Context(), mac.Name, types.MergePatchType, []byte(`{"status":{"leaseRef":null,"runningVMs":0,"phase":"Available"}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err, "the server keeps its fields without an error")
		kept := getMac(t, mac.Name)
		assert.Equal(t, lease.UID, kept.Status.LeaseRef.UID)
		assert.EqualValues(t, 2, kept.Status.RunningVMs)
		assert.Equal(t, rackv1alpha1.MacNodeLeased, kept.Status.Phase)
		err = client(t, admin).RackV1alpha1().MacNodes().Delete(t.Context(), mac.Name, metav1.DeleteOptions{})
		assert.Error(t, err, "a leased Mac cannot be taken away")
	})

	t.Run("a slot is free after its virtual machine has stopped", func(t *testing.T) {
		kubectl(t, acme, "delete", instances, "one", "--timeout="+patience.String())
		three := startInstance(t, acme, "three", "main-job")
		assert.NotEqual(t, one.Status.MachineID, three.Status.MachineID)
		assert.NotEqual(t, one.Status.MACAddress, three.Status.MACAddress)
		assert.EqualValues(t, 2, getMac(t, mac.Name).Status.RunningVMs)
	})
	assertCompliant(t)
}

// assertTampering asserts that a write was refused with the name of the rule.
func assertTampering(t *testing.T, err error, what string) {
	t.Helper()
	assert.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%s: %v", what, err)
	assert.ErrorContains(t, err, "rule 3 (at least 24 hours)", what)
}

// assertNone asserts that the instance does not exist.
func assertNone(t *testing.T, namespace, name string) {
	t.Helper()
	_, err := client(t, admin).InstanceV1alpha1().MacOSInstances(namespace).Get(t.Context(), name, metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

// A lease without a Mac reports the reason, and gets a Mac when one is released.
func TestNoMacIsFree(t *testing.T) {
	reset(t)
	first := leaseMac(t, acme, "first")
	leaseMac(t, acme, "second")
	leaseMac(t, globex, "third")
	create(t, globex, leaseManifest("fourth"))
	eventually(t, func(c *assert.CollectT) {
		waiting := getLease(t, globex, "fourth")
		assert.Equal(c, rackv1alpha1.MacNodeLeasePending, waiting.Status.Phase)
		message, _ := json.Marshal(waiting.Status.Conditions)
		require.NotEmpty(c, waiting.Status.Conditions)
		assert.Equal(c, metav1.ConditionFalse, waiting.Status.Conditions[0].Status)
		assert.Contains(c, string(message), "3", "the chassis of the class are counted")
		assert.NotContains(c, string(message), acme, "the message must not name their tenants")
	})
	said := createFails(t, globex, instanceManifest("early", "fourth"))
	assert.Contains(t, said, `lease "fourth" has no Mac yet`)

	kubectl(t, acme, "delete", leases, "first", "--wait=false")
	toFloor(t, first, 0)
	kubectl(t, globex, "wait", "--for=condition=Bound", leases+"/fourth", "--timeout="+patience.String())
	assert.Equal(t, first.Status.SerialNumber, getLease(t, globex, "fourth").Status.SerialNumber)
}
