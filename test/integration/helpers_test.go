package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/testbed"
)

const (
	admin  = "admin"
	acme   = "acme"
	globex = "globex"

	leases    = "leases.rack.macrack.io"
	instances = "macosinstances"

	// patience is the timeout of every condition, on a busy machine.
	patience = 3 * time.Minute

	macs = 3 // of the testbed
)

// kubectl runs kubectl as a user, which must succeed.
func kubectl(t *testing.T, user string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := tb.Kubectl(t.Context(), user, args...)
	require.NoError(t, err)
	return stdout, stderr
}

// kubectlFails runs kubectl as a user, which must fail, and returns its standard error.
func kubectlFails(t *testing.T, user string, args ...string) string {
	t.Helper()
	stdout, stderr, err := tb.Kubectl(t.Context(), user, args...)
	require.Error(t, err, "kubectl %s succeeded: %s", strings.Join(args, " "), stdout)
	return stderr
}

// create creates objects with kubectl, as a user, which must succeed.
func create(t *testing.T, user, manifest string, args ...string) {
	t.Helper()
	_, _, err := tb.KubectlInput(t.Context(), manifest, user, append([]string{"create", "-f", "-"}, args...)...)
	require.NoError(t, err)
}

// createFails is create, but must fail; it returns kubectl's standard error.
func createFails(t *testing.T, user, manifest string, args ...string) string {
	t.Helper()
	stdout, stderr, err := tb.KubectlInput(t.Context(), manifest, user, append([]string{"create", "-f", "-"}, args...)...)
	require.Error(t, err, "it was created: %s", stdout)
	return stderr
}

func client(t *testing.T, user string) *versioned.Clientset {
	t.Helper()
	c, err := tb.Clientset(user)
	require.NoError(t, err)
	return c
}

func kube(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	c, err := tb.Kubernetes(admin)
	require.NoError(t, err)
	return c
}

// eventually waits until check reports no failure.
func eventually(t *testing.T, check func(c *assert.CollectT)) {
	t.Helper()
	require.EventuallyWithT(t, check, patience, 100*time.Millisecond)
}

func leaseManifest(name string) string {
	return fmt.Sprintf(`
apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata: {name: %s}
spec: {className: base}
`, name)
}

func instanceManifest(name, lease string) string {
	return fmt.Sprintf(`
apiVersion: instance.macrack.io/v1alpha1
kind: MacOSInstance
metadata: {name: %s}
spec: {leaseName: %s, className: small, imageName: macos-15-xcode-16}
`, name, lease)
}

// leaseMac leases a Mac for a tenant, and returns the lease when it is Bound and its Node admits
// the tenant.
func leaseMac(t *testing.T, tenant, name string) *rackv1alpha1.MacNodeLease {
	t.Helper()
	create(t, tenant, leaseManifest(name))
	kubectl(t, tenant, "wait", "--for=condition=Bound", leases+"/"+name, "--timeout="+patience.String())
	lease := getLease(t, tenant, name)
	eventually(t, func(c *assert.CollectT) {
		assert.ElementsMatch(c, []string{"macrack.io/tenant=" + tenant + ":NoSchedule"}, ourTaints(c, t, lease.Status.NodeName))
	})
	return lease
}

// startInstance starts an instance of a tenant, and returns it when it is Running, answers and has
// an address.
func startInstance(t *testing.T, tenant, name, lease string) *instancev1alpha1.MacOSInstance {
	t.Helper()
	create(t, tenant, instanceManifest(name, lease))
	kubectl(t, tenant, "wait", "--for=jsonpath={.status.phase}=Running", instances+"/"+name, "--timeout="+patience.String())
	kubectl(t, tenant, "wait", "--for=condition=GuestReady", instances+"/"+name, "--timeout="+patience.String())
	kubectl(t, tenant, "wait", "--for=jsonpath={.status.ipAddress.value}", instances+"/"+name, "--timeout="+patience.String())
	i, err := client(t, admin).InstanceV1alpha1().MacOSInstances(tenant).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return i
}

func getLease(t *testing.T, tenant, name string) *rackv1alpha1.MacNodeLease {
	t.Helper()
	lease, err := client(t, admin).RackV1alpha1().MacNodeLeases(tenant).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return lease
}

func getMac(t *testing.T, name string) *rackv1alpha1.MacNode {
	t.Helper()
	mac, err := client(t, admin).RackV1alpha1().MacNodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return mac
}

// ourTaints returns MacRack's taints of a Node, as kubectl writes them.
func ourTaints(c require.TestingT, t *testing.T, name string) []string {
	node, err := kube(t).CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	var all []string
	for _, taint := range node.Spec.Taints {
		if taint.Key == rules.TaintUnleased || taint.Key == rules.TaintTenant {
			all = append(all, taint.ToString())
		}
	}
	return all
}

var unleased = (&corev1.Taint{Key: rules.TaintUnleased, Effect: corev1.TaintEffectNoSchedule}).ToString()

// records returns the records of a type about a lease, in chain order.
func records(t *testing.T, namespace string, recordType rackv1alpha1.AuditRecordType, lease string) []rackv1alpha1.AuditRecord {
	t.Helper()
	list, err := client(t, admin).RackV1alpha1().AuditRecords(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "type=" + string(recordType)})
	require.NoError(t, err)
	var all []rackv1alpha1.AuditRecord
	for _, r := range list.Items {
		if r.Lease != nil && r.Lease.Name == lease {
			all = append(all, r)
		}
	}
	return all
}

// reset deletes and releases all leases at the end of a test, so that the next one finds all Macs
// free.
func reset(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		c, err := tb.Clientset(admin)
		require.NoError(t, err)
		all, err := c.RackV1alpha1().MacNodeLeases("").List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		var last time.Time
		for _, lease := range all.Items {
			if floor := lease.Status.EarliestReleaseAt; floor != nil && floor.After(last) {
				last = floor.Time
			}
			err := c.RackV1alpha1().MacNodeLeases(lease.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{})
			if !apierrors.IsNotFound(err) {
				require.NoError(t, err)
			}
		}
		if left := last.Sub(tb.Clock.Now()); left > 0 {
			tb.Advance(left + time.Second)
		}
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			all, err := c.RackV1alpha1().MacNodeLeases("").List(ctx, metav1.ListOptions{})
			require.NoError(collect, err)
			for _, lease := range all.Items {
				assert.Fail(collect, "a lease still exists", "%s/%s %+v", lease.Namespace, lease.Name, lease.Status)
			}
			left, err := c.InstanceV1alpha1().MacOSInstances("").List(ctx, metav1.ListOptions{})
			require.NoError(collect, err)
			for _, i := range left.Items {
				assert.Fail(collect, "an instance still exists", "%s/%s %+v", i.Namespace, i.Name, i.Status)
			}
			for n := 1; n <= macs; n++ {
				mac, err := c.RackV1alpha1().MacNodes().Get(ctx, testbed.MacName(n), metav1.GetOptions{})
				require.NoError(collect, err)
				assert.Equal(collect, rackv1alpha1.MacNodeAvailable, mac.Status.Phase, "%s: %+v", mac.Name, mac.Status)
			}
		}, patience, 200*time.Millisecond)
	})
}
