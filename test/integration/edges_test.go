package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// The next owner of a namespace's name reads nothing of the former one.
func TestNamesake(t *testing.T) {
	reset(t)
	const name = "reborn"
	begin := func() {
		t.Helper()
		kubectl(t, admin, "create", "namespace", name)
		_, err := kube(t).RbacV1().RoleBindings(name).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "edit"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: globex}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	lease := func(lease string) *rackv1alpha1.MacNodeLease {
		t.Helper()
		create(t, admin, leaseManifest(lease), "--namespace="+name)
		kubectl(t, admin, "wait", "--namespace="+name, "--for=condition=Bound", leases+"/"+lease, "--timeout="+patience.String())
		return getLease(t, name, lease)
	}
	readAs := func(user string) []rackv1alpha1.AuditRecord {
		t.Helper()
		var list *rackv1alpha1.AuditRecordList
		eventually(t, func(c *assert.CollectT) { // a RoleBinding takes a moment to take effect
			var err error
			list, err = client(t, user).RackV1alpha1().AuditRecords(name).List(t.Context(), metav1.ListOptions{})
			require.NoError(c, err)
		})
		return list.Items
	}

	begin()
	first := lease("first")
	require.Len(t, readAs(globex), 1, "a tenant reads its own")
	kubectl(t, admin, "delete", "namespace", name, "--wait=false")
	kubectl(t, admin, "wait", "--namespace="+name, "--for=jsonpath={.status.phase}=Held", leases+"/first", "--timeout="+patience.String())
	toFloor(t, first, 0)
	kubectl(t, admin, "wait", "--for=delete", "namespace/"+name, "--timeout="+patience.String())
	old := readAs(admin)
	require.Len(t, old, 3, "bound, held, released: records outlive the namespace")

	begin()
	assert.Empty(t, readAs(globex))
	_, err := client(t, globex).RackV1alpha1().AuditRecords(name).Get(t.Context(), old[0].Name, metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	lease("second")
	var types []string
	for _, r := range readAs(globex) {
		types = append(types, string(r.Type)+" "+r.Lease.Name)
	}
	assert.Equal(t, []string{"LeaseBound second"}, types)
	w, err := client(t, globex).RackV1alpha1().AuditRecords(name).Watch(t.Context(), metav1.ListOptions{ResourceVersion: old[0].ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	event := <-w.ResultChan()
	require.Equal(t, watch.Added, event.Type)
	assert.Equal(t, "second", event.Object.(*rackv1alpha1.AuditRecord).Lease.Name, "a watch from an old revision shows no records of the former owner")
	assert.Len(t, readAs(admin), 4, "an administrator reads all")
	kubectl(t, admin, "delete", "namespace", name, "--wait=false")
	assertCompliant(t)
}

// The policies let one user delete the pod of a virtual machine. The machine stops, the instance
// reports the cause, and no other pod is created.
func TestPlaceholderIsDeleted(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "build")
	startInstance(t, acme, "vm", "build")
	require.NoError(t, as(t, collector).CoreV1().Pods(acme).Delete(t.Context(), "vm-vm", metav1.DeleteOptions{}))
	eventually(t, func(c *assert.CollectT) {
		i, err := client(t, acme).InstanceV1alpha1().MacOSInstances(acme).Get(t.Context(), "vm", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, instancev1alpha1.MacOSInstanceStopped, i.Status.Phase)
		assert.Regexp(c, `the placeholder pod vm-vm was deleted at \S+Z by a user or controller of the cluster`, i.Status.Message)
		assert.Empty(c, getLease(t, acme, "build").Status.Instances)
	})
	startInstance(t, acme, "next", "build")
	pods, err := kube(t).CoreV1().Pods(acme).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, pods.Items, 1)
	assert.Equal(t, "next-vm", pods.Items[0].Name)
}

// A lease whose class is deleted continues and ends as any other; requests that need the class are
// refused.
func TestClassIsDeleted(t *testing.T) {
	reset(t)
	classes := client(t, admin).RackV1alpha1().MacNodeClasses()
	base, err := classes.Get(t.Context(), "base", metav1.GetOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := classes.Create(context.Background(), &rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "base"}, Spec: base.Spec}, metav1.CreateOptions{})
		assert.NoError(t, err)
	})
	lease := leaseMac(t, acme, "build")
	startInstance(t, acme, "vm", "build")
	require.NoError(t, classes.Delete(t.Context(), "base", metav1.DeleteOptions{}))
	assert.Contains(t, createFails(t, acme, instanceManifest("another", "build")), "no longer in the catalogue")
	assert.Contains(t, createFails(t, acme, leaseManifest("another")), "there is no such class")
	assert.Equal(t, lease.UID, getMac(t, lease.Status.NodeName).Status.LeaseRef.UID)

	kubectl(t, acme, "delete", leases, "build", "--wait=false")
	assert.Equal(t, rackv1alpha1.MacNodeLeaseHeld, getLease(t, acme, "build").Status.Phase)
	toFloor(t, lease, 0)
	kubectl(t, acme, "wait", "--for=delete", leases+"/build", "--timeout="+patience.String())
	assertCompliant(t)
}

// The deleted Node of a leased Mac is registered again as unleased, and then gets the tenant's
// taint: it is never open to others.
func TestNodeIsDeleted(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "build")
	mac := lease.Status.NodeName
	before, err := kube(t).CoreV1().Nodes().Get(t.Context(), mac, metav1.GetOptions{})
	require.NoError(t, err)
	w, err := kube(t).CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", mac).String(), ResourceVersion: before.ResourceVersion,
	})
	require.NoError(t, err)
	defer w.Stop()
	kubectl(t, admin, "delete", "node", mac)
	var seen [][]string
	for event := range w.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		if !ok || event.Type == watch.Deleted {
			continue
		}
		var ours []string
		for _, taint := range node.Spec.Taints {
			if strings.HasPrefix(taint.Key, "macrack.io/") {
				ours = append(ours, taint.ToString())
			}
		}
		require.NotEmpty(t, ours, "the Node is open to all tenants")
		seen = append(seen, ours)
		if node.UID != before.UID && len(ours) == 1 && ours[0] == "macrack.io/tenant=acme:NoSchedule" {
			break
		}
	}
	assert.Contains(t, seen, []string{unleased})
	startInstance(t, acme, "vm", "build")

	// The heartbeats belong to the new Node: it owns the Lease, which stays.
	after, err := kube(t).CoreV1().Nodes().Get(t.Context(), mac, metav1.GetOptions{})
	require.NoError(t, err)
	eventually(t, func(c *assert.CollectT) {
		heartbeat, err := kube(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), mac, metav1.GetOptions{})
		require.NoError(c, err)
		require.Len(c, heartbeat.OwnerReferences, 1)
		assert.Equal(c, after.UID, heartbeat.OwnerReferences[0].UID)
	})
}

// A quota limits the number of Macs that a namespace leases, even under concurrent requests. A Held
// lease counts, because it keeps its Mac.
func TestQuota(t *testing.T) {
	reset(t)
	quotas := kube(t).CoreV1().ResourceQuotas(acme)
	const name = "macs"
	kubectl(t, admin, "create", "quota", name, "--namespace="+acme, "--hard=count/macnodeleases.rack.macrack.io=2,count/macosinstances.instance.macrack.io=3")
	t.Cleanup(func() { assert.NoError(t, quotas.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	used := func(c require.TestingT) string {
		q, err := quotas.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		l, i := q.Status.Used["count/macnodeleases.rack.macrack.io"], q.Status.Used["count/macosinstances.instance.macrack.io"]
		return l.String() + " leases, " + i.String() + " instances"
	}
	counted := func() bool {
		q, err := quotas.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && len(q.Status.Used) == 2
	}
	// The cluster counts only discovered resources: it discovers new ones every half minute.
	require.Eventually(t, func() bool {
		if !counted() {
			_ = quotas.Delete(t.Context(), name, metav1.DeleteOptions{})
			kubectl(t, admin, "create", "quota", name, "--namespace="+acme, "--hard=count/macnodeleases.rack.macrack.io=2,count/macosinstances.instance.macrack.io=3")
		}
		return counted()
	}, patience, patience/60)

	var group sync.WaitGroup
	for n := range 16 {
		group.Go(func() {
			_, err := client(t, acme).RackV1alpha1().MacNodeLeases(acme).Create(t.Context(), &rackv1alpha1.MacNodeLease{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rival-%d", n)}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
			}, metav1.CreateOptions{})
			if err != nil {
				assert.True(t, apierrors.IsForbidden(err), "%v", err)
				assert.ErrorContains(t, err, "quota")
			}
		})
	}
	group.Wait()
	all, err := client(t, acme).RackV1alpha1().MacNodeLeases(acme).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, all.Items, 2)
	assert.Equal(t, "2 leases, 0 instances", used(t))
	build := all.Items[0].Name
	kubectl(t, acme, "wait", "--for=condition=Bound", leases+"/"+build, "--timeout="+patience.String())

	kubectl(t, acme, "delete", leases, build, "--wait=false")
	assert.Contains(t, createFails(t, acme, leaseManifest("another")), "exceeded quota: macs")
	described, _ := kubectl(t, acme, "describe", "quota", name)
	assert.Regexp(t, `count/macnodeleases\.rack\.macrack\.io +2 +2`, described)

	t.Run("a refused request is not charged", func(t *testing.T) {
		startInstance(t, acme, "one", build)
		startInstance(t, acme, "two", build)
		for range 3 {
			assert.Contains(t, createFails(t, acme, instanceManifest("three", build)), "rule 1 (two VMs per Mac)")
		}
		assert.Equal(t, "2 leases, 2 instances", used(t))
	})
	toFloor(t, getLease(t, acme, build), 0)
	kubectl(t, acme, "wait", "--for=delete", leases+"/"+build, "--timeout="+patience.String())
	eventually(t, func(c *assert.CollectT) { assert.Equal(c, "1 leases, 0 instances", used(c)) })
}

// The cluster refuses pods on a Mac that are not placeholders. The agent refuses, and records, the
// ones that only it can detect.
func TestForeignPods(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "build")
	pod := func(namespace string, spec corev1.PodSpec) *corev1.Pod {
		spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "foreign"}, Spec: spec}
	}
	tenant, err := tb.Kubernetes(globex)
	require.NoError(t, err)
	for name, spec := range map[string]corev1.PodSpec{
		"by name":               {NodeName: lease.Status.NodeName},
		"tolerating all":        {Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		"tolerating the tenant": {Tolerations: []corev1.Toleration{{Key: "macrack.io/tenant", Operator: corev1.TolerationOpEqual, Value: acme}}},
	} {
		_, err := tenant.CoreV1().Pods(globex).Create(t.Context(), pod(globex, spec), metav1.CreateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", name, err)
		assert.ErrorContains(t, err, "rule 2 (one tenant per Mac)", name)
	}
	t.Run("the policies cannot be deleted", func(t *testing.T) {
		listed, _ := kubectl(t, admin, "get", "validatingadmissionpolicies,validatingadmissionpolicybindings", "-o", "name")
		assert.NotContains(t, listed, "macrack")
		kubectl(t, admin, "apply", "--dry-run=server", "-k", "artifacts/policies") // kubectl runs at the root of the repository
	})
	t.Run("a pod that slips through is refused by the agent", func(t *testing.T) {
		before := len(crossings(t))
		_, err := kube(t).CoreV1().Pods("kube-system").Create(t.Context(), pod("kube-system", corev1.PodSpec{NodeName: lease.Status.NodeName}), metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = kube(t).CoreV1().Pods("kube-system").Delete(context.Background(), "foreign", metav1.DeleteOptions{})
		})
		eventually(t, func(c *assert.CollectT) {
			p, err := kube(t).CoreV1().Pods("kube-system").Get(t.Context(), "foreign", metav1.GetOptions{})
			require.NoError(c, err)
			assert.Equal(c, corev1.PodFailed, p.Status.Phase)
			assert.Contains(c, p.Status.Message, "rule 2 (one tenant per Mac)")
		})
		all := crossings(t)
		require.Greater(t, len(all), before)
		last := all[len(all)-1]
		assert.Equal(t, "kube-system", last.Details.SourceNamespace)
		assert.Equal(t, rackv1alpha1.LayerAgent, last.Details.Layer)
		assert.Equal(t, acme, last.Tenant)
		assert.Equal(t, lease.UID, last.Lease.UID)
		assert.Equal(t, "system:node:"+lease.Status.NodeName, last.Actor.Username)
	})
}

// crossings returns the records of tenants that tried to use another tenant's Mac.
func crossings(t *testing.T) []rackv1alpha1.AuditRecord {
	t.Helper()
	list, err := client(t, admin).RackV1alpha1().AuditRecords("macrack-system").List(t.Context(), metav1.ListOptions{FieldSelector: "type=CrossTenantRejected"})
	require.NoError(t, err)
	return list.Items
}
