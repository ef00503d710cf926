package integration

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// collector is a user that the policies on placeholder pods admit. It stands for any user in a
// cluster without the policies.
const collector = "system:serviceaccount:kube-system:generic-garbage-collector"

// as returns a client of a user without a context.
func as(t *testing.T, user string) *kubernetes.Clientset {
	t.Helper()
	config, err := tb.Cluster.RESTConfig(user)
	require.NoError(t, err)
	c, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return c
}

// runs checks that the virtual machine of an instance still runs and answers through its pod.
func runs(c require.TestingT, t *testing.T, name, pod string) {
	i, err := client(t, acme).InstanceV1alpha1().MacOSInstances(acme).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	assert.Equal(c, instancev1alpha1.MacOSInstanceRunning, i.Status.Phase, i.Status.Message)
	p, err := kube(t).CoreV1().Pods(acme).Get(t.Context(), pod, metav1.GetOptions{})
	require.NoError(c, err)
	assert.Equal(c, corev1.PodRunning, p.Status.Phase, p.Status.Message)
	out, _, err := tb.Kubectl(t.Context(), acme, "logs", pod)
	require.NoError(c, err)
	assert.NotEmpty(c, out)
}

// The metadata of a placeholder pod stay, whichever user changes them and however. Neither its
// tenant nor an administrator can delete it.
func TestPlaceholderMetadataIsImmutable(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "build")
	startInstance(t, acme, "vm", "build")
	const pod = "pod/vm-vm"
	for name, tt := range map[string]struct {
		args    []string
		refused string
	}{
		"label changed":      {[]string{"label", pod, "macrack.io/instance=other", "--overwrite"}, "only MacRack's controllers set them"},
		"label removed":      {[]string{"label", pod, "macrack.io/instance-"}, "of a placeholder pod cannot be removed"},
		"annotation changed": {[]string{"annotate", pod, "macrack.io/instance-uid=other", "--overwrite"}, "only MacRack's controllers set them"},
		"annotation removed": {[]string{"annotate", pod, "macrack.io/instance-uid-"}, "of a placeholder pod cannot be removed"},
		"owners cleared":     {[]string{"patch", pod, "--type=merge", "-p", `{"metadata":{"ownerReferences":null}}`}, "is its MacOSInstance and cannot be changed"},
		"finalizer added":    {[]string{"patch", pod, "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/x"]}}`}, "cannot have finalizers"},
		"deleted":            {[]string{"delete", pod}, "a placeholder pod cannot be deleted before its MacOSInstance"},
		"deleted by force":   {[]string{"delete", pod, "--force", "--grace-period=0"}, "a placeholder pod cannot be deleted before its MacOSInstance"},
		"all pods deleted":   {[]string{"delete", "pods", "--all"}, "a placeholder pod cannot be deleted before its MacOSInstance"},
	} {
		for _, who := range []string{acme, admin} {
			out, stderr, err := tb.Kubectl(t.Context(), who, append(tt.args, "-n", acme)...)
			if assert.Error(t, err, "%s by %s: %s", name, who, out) {
				assert.Contains(t, stderr, tt.refused, "%s by %s", name, who)
			}
		}
	}
	err := kube(t).PolicyV1().Evictions(acme).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: acme, Name: "vm-vm"}})
	assert.True(t, apierrors.IsTooManyRequests(err), err)
	pods := kube(t).CoreV1().Pods(acme)
	bare, err := pods.Get(t.Context(), "vm-vm", metav1.GetOptions{})
	require.NoError(t, err)
	bare.Labels, bare.Annotations, bare.OwnerReferences = nil, nil, nil
	_, err = pods.Update(t.Context(), bare, metav1.UpdateOptions{})
	require.ErrorContains(t, err, "cannot be removed")
	kubectl(t, acme, "label", pod, "team=ios")
	runs(t, t, "vm", "vm-vm")
}

// Without the policies a tenant can change all of that. Its virtual machine continues to run, and
// the controllers restore the metadata.
func TestPlaceholderIsRepaired(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "build")
	startInstance(t, acme, "vm", "build")
	pods := as(t, collector).CoreV1().Pods(acme)
	original, err := pods.Get(t.Context(), "vm-vm", metav1.GetOptions{})
	require.NoError(t, err)
	for _, patch := range []string{
		`{"metadata":{"labels":{"macrack.io/instance":null}}}`,
		`{"metadata":{"labels":{"macrack.io/instance":"other"}}}`,
		`{"metadata":{"annotations":{"macrack.io/instance-uid":null}}}`,
		`{"metadata":{"annotations":{"macrack.io/instance-uid":"other"}}}`,
		`{"metadata":{"ownerReferences":null}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"other","uid":"other","controller":true}]}}`,
		`{"metadata":{"labels":null,"annotations":null,"ownerReferences":null}}`,
		`{"metadata":{"finalizers":["example.com/x"]}}`,
	} {
		_, err := pods.Patch(t.Context(), "vm-vm", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err, patch)
		eventually(t, func(c *assert.CollectT) {
			pod, err := pods.Get(t.Context(), "vm-vm", metav1.GetOptions{})
			require.NoError(c, err)
			assert.Equal(c, original.Labels, pod.Labels, patch)
			assert.Equal(c, original.Annotations, pod.Annotations, patch)
			assert.Equal(c, original.OwnerReferences, pod.OwnerReferences, patch)
		})
		runs(t, t, "vm", "vm-vm")
	}
	// The finalizer holds the pod, but neither the instance nor the next instance of the same name.
	kubectl(t, acme, "delete", instances, "vm", "--timeout="+patience.String())
	_, err = pods.Patch(t.Context(), "vm-vm", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	startInstance(t, acme, "vm", "build")
	assertCompliant(t)
}

// A Mac can be drained only in maintenance; then the instance reports the cause of its end.
func TestDrain(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "build")
	i := startInstance(t, acme, "vm", "build")
	mac := lease.Status.NodeName
	t.Cleanup(func() {
		_, _, _ = tb.Kubectl(context.Background(), admin, "uncordon", mac)
		_, _, _ = tb.Kubectl(context.Background(), admin, "patch", "mn", mac, "--type=merge", "-p", `{"spec":{"maintenance":false}}`)
	})
	out := kubectlFails(t, admin, "drain", mac, "--timeout=5s", "--ignore-daemonsets")
	assert.Contains(t, out, "disruption budget")
	out = kubectlFails(t, admin, "drain", mac, "--timeout=5s", "--ignore-daemonsets", "--disable-eviction")
	assert.Contains(t, out, "a placeholder pod cannot be deleted before its MacOSInstance")
	for _, user := range []string{"system:kube-scheduler", "system:serviceaccount:kube-system:node-controller", "system:serviceaccount:kube-system:pod-garbage-collector"} {
		err := as(t, user).CoreV1().Pods(acme).Delete(t.Context(), "vm-vm", metav1.DeleteOptions{})
		require.Error(t, err, user)
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", user, err)
	}
	runs(t, t, "vm", "vm-vm")

	kubectl(t, admin, "patch", "mn", mac, "--type=merge", "-p", `{"spec":{"maintenance":true}}`)
	eventually(t, func(c *assert.CollectT) {
		pod, err := kube(t).CoreV1().Pods(acme).Get(t.Context(), "vm-vm", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, "true", pod.Annotations[rules.AnnotationMaintenance])
		assert.Empty(c, budgets(c, t))
	})
	runs(t, t, "vm", "vm-vm")
	kubectl(t, admin, "drain", mac, "--timeout="+patience.String(), "--ignore-daemonsets")
	eventually(t, func(c *assert.CollectT) {
		ended, err := client(t, acme).InstanceV1alpha1().MacOSInstances(acme).Get(t.Context(), "vm", metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, i.UID, ended.UID)
		assert.Equal(c, instancev1alpha1.MacOSInstanceStopped, ended.Status.Phase)
		assert.Regexp(c, `placeholder pod vm-vm was deleted at \S+Z by an eviction, as kubectl drain asks for`, ended.Status.Message)
	})
	kubectl(t, admin, "uncordon", mac)
	kubectl(t, admin, "patch", "mn", mac, "--type=merge", "-p", `{"spec":{"maintenance":false}}`)
	startInstance(t, acme, "next", "build")
	assert.Len(t, budgets(t, t), 1)
	assertCompliant(t)
}

func budgets(c require.TestingT, t *testing.T) []policyv1.PodDisruptionBudget {
	list, err := kube(t).PolicyV1().PodDisruptionBudgets(acme).List(t.Context(), metav1.ListOptions{LabelSelector: rules.LabelLease})
	require.NoError(c, err)
	return list.Items
}

// A NoExecute taint on a Node ends no virtual machine: its pod tolerates the taint.
func TestNoExecute(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "build")
	startInstance(t, acme, "vm", "build")
	kubectl(t, admin, "taint", "node", lease.Status.NodeName, "example.com/repair=now:NoExecute")
	t.Cleanup(func() {
		_, _, _ = tb.Kubectl(context.Background(), admin, "taint", "node", lease.Status.NodeName, "example.com/repair-")
	})
	// A second instance tolerates the taint and is scheduled, while the taint is in force.
	startInstance(t, acme, "second", "build")
	runs(t, t, "vm", "vm-vm")
}

// An existing pod with the name of the placeholder does not block the instance, which reports the
// new name.
func TestPodNameIsTaken(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "build")
	create(t, acme, `
apiVersion: v1
kind: Pod
metadata: {name: vm-vm}
spec:
  nodeSelector: {kubernetes.io/os: linux}
  containers: [{name: a, image: a}]
`)
	t.Cleanup(func() {
		_ = kube(t).CoreV1().Pods(acme).Delete(context.Background(), "vm-vm", metav1.DeleteOptions{})
	})
	i := startInstance(t, acme, "vm", "build")
	assert.Regexp(t, `^vm-vm-[0-9a-f]{10}$`, i.Status.PodName)
	runs(t, t, "vm", i.Status.PodName)
	eventually(t, func(c *assert.CollectT) {
		events, err := kube(t).CoreV1().Events(acme).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=PodNameTaken,involvedObject.uid=" + string(i.UID)})
		require.NoError(c, err)
		if assert.NotEmpty(c, events.Items) {
			assert.Contains(c, events.Items[0].Message, "pod name vm-vm already in use; the placeholder pod is named "+i.Status.PodName)
		}
	})
	_, err := kube(t).CoreV1().Pods(acme).Get(t.Context(), "vm-vm", metav1.GetOptions{})
	require.NoError(t, err, "the pod of the tenant stays")
}

// The number of readers of a console is limited, and the refusal reports the limit; commands have
// their own limit.
func TestConsoleReadersAreLimited(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "build")
	startInstance(t, acme, "vm", "build")
	tenant, err := tb.Kubernetes(acme)
	require.NoError(t, err)
	follow := func() (io.ReadCloser, error) {
		return tenant.CoreV1().Pods(acme).GetLogs("vm-vm", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	}
	var open []io.ReadCloser
	for n := range 16 {
		stream, err := follow()
		require.NoError(t, err, fmt.Sprint(n))
		_, err = stream.Read(make([]byte, 1))
		require.NoError(t, err)
		open = append(open, stream)
	}
	_, err = follow()
	require.Error(t, err)
	assert.True(t, apierrors.IsTooManyRequests(err), err)
	assert.Contains(t, kubectlFails(t, acme, "exec", "vm-vm", "--", "true"), "this guest runs no commands", "the guest is asked")
	for _, stream := range open {
		require.NoError(t, stream.Close())
	}
	eventually(t, func(c *assert.CollectT) {
		stream, err := follow()
		require.NoError(c, err)
		assert.NoError(c, stream.Close())
	})
}
