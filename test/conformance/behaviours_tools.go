package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"
)

var tools = []behaviour{
	{name: "roles and quotas for the kind are stored, and wrong names cause a warning", verbs: read, do: namesInRolesAndQuotas},
	{name: "kstatus follows an object from its creation to its deletion", verbs: update, do: kstatusLife},
	{name: "kubectl get sorts, and lists in chunks", verbs: read, do: sorted},
	{name: "a list at a resourceVersion", verbs: []string{"list", "watch"}, do: listAt},
	{name: "commands for other kinds end with an error", verbs: read, do: misfits},
	{name: "kubectl get -o yaml, delete and create -f", verbs: create, do: rawRestore},
}

// namesInRolesAndQuotas writes roles and quotas by dry runs, and reads the warnings.
func namesInRolesAndQuotas(t *T, k *kind) {
	stderr := func(obj map[string]any) string {
		return t.apply(admin, toJSON(obj), "--dry-run=server").stderr
	}
	role := func(resources ...string) string {
		return stderr(map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": t.world.name()},
			"rules": []any{map[string]any{"apiGroups": []string{k.Group}, "resources": resources, "verbs": []string{"get"}}}})
	}
	quota := func(name string) string {
		return stderr(map[string]any{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": t.world.name(), "namespace": t.world.namespace},
			"spec": map[string]any{"hard": map[string]any{"count/" + name: "9"}}})
	}
	names := []string{k.Resource, k.Resource + "/finalizers", "*", "*/status"}
	for _, sub := range k.Subresources {
		names = append(names, k.Resource+"/"+sub)
	}
	assert.Empty(t, role(names...))
	for _, wrong := range append([]string{strings.ToLower(k.Kind), k.Resource + "/absent"}, k.ShortNames...) {
		assert.Contains(t, role(wrong), "this role grants nothing for "+wrong+" in "+k.Group)
	}
	if k.Namespaced {
		assert.Empty(t, quota(k.Resource+"."+k.Group))
	} else {
		assert.Contains(t, quota(k.Resource+"."+k.Group), "this quota limits nothing for "+k.Resource+"."+k.Group)
	}
	for _, wrong := range append([]string{strings.ToLower(k.Kind)}, k.ShortNames...) {
		assert.Contains(t, quota(wrong+"."+k.Group), "this quota limits nothing for "+wrong+"."+k.Group)
	}
}

// kstatusOf returns the status that kstatus computes. It fails for a Current object with a stale
// condition.
func kstatusOf(t *T, obj *unstructured.Unstructured) status.Status {
	result, err := status.Compute(obj)
	require.NoError(t, err)
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, item := range list {
		condition := item.(map[string]any)
		if result.Status == status.CurrentStatus {
			assert.EqualValues(t, obj.GetGeneration(), condition["observedGeneration"], "observedGeneration of %s", condition["type"])
		}
	}
	return result.Status
}

// becomes waits until kstatus computes a status.
func (k *kind) becomes(t *T, name string, want status.Status) {
	assert.NoError(t, t.eventually(func() error {
		obj := k.get(t, name)
		if got := kstatusOf(t, obj); got != want {
			return fmt.Errorf("kstatus reports %s, not %s: %s", got, want, field(obj, "status.conditions"))
		}
		return nil
	}))
}

func kstatusLife(t *T, k *kind) {
	obj := k.object(t)
	obj.SetFinalizers([]string{finalizer})
	if k.Fails != nil {
		obj.Object = merge(obj.Object, t.world.expand(k.Fails).(map[string]any))
	}
	k.vacate(t, obj)
	name := obj.GetName()
	created, err := k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	if len(k.Conditions) == 0 {
		assert.Equal(t, status.CurrentStatus, kstatusOf(t, created), "in the answer to the creation")
	} else {
		assert.Equal(t, status.InProgressStatus, kstatusOf(t, created), "in the answer to the creation")
	}
	if k.Fails != nil {
		k.becomes(t, name, status.FailedStatus)
	}
	if k.Change != nil {
		changed := k.mustPatch(t, name, t.world.expand(k.Change).(map[string]any))
		assert.Equal(t, len(k.Conditions) == 0, kstatusOf(t, changed) == status.CurrentStatus, "in the answer to a change of the spec: %s", field(changed, "status.conditions"))
	}
	if k.Fails != nil {
		k.becomes(t, name, status.FailedStatus)
	}
	require.NoError(t, k.client(t).Delete(t, name, metav1Delete))
	assert.Equal(t, status.TerminatingStatus, kstatusOf(t, k.get(t, name)), "while it is being deleted")
	require.NoError(t, t.eventually(func() error {
		if others := without(k.get(t, name).GetFinalizers(), []string{finalizer}); len(others) > 0 {
			return errStillWritten
		}
		return nil
	}))
	k.mustPatch(t, name, map[string]any{"metadata": map[string]any{"finalizers": []any{}}})
	k.gone(t, name)
}

func sorted(t *T, k *kind) {
	name := k.settled(t).GetName()
	out := t.kubectl(k.User, "get", k.resource(), "--sort-by=.metadata.creationTimestamp", "--chunk-size=1", "--no-headers", "-o", "custom-columns=T:.metadata.creationTimestamp,N:.metadata.name")
	assert.Empty(t, out.stderr)
	assert.Contains(t, out.stdout, name)
	assert.True(t, slices.IsSortedFunc(slices.Collect(strings.Lines(out.stdout)), byTime), out.stdout)
	out = t.kubectl(k.User, "get", k.resource(), "--field-selector=metadata.name="+name, "--no-headers")
	assert.Len(t, strings.Split(strings.TrimSpace(out.stdout), "\n"), 1)
}

// byTime compares lines that begin with a time.
func byTime(a, b string) int { return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0]) }

func listAt(t *T, k *kind) {
	name := k.settled(t).GetName()
	now, err := k.client(t).List(t, metav1List)
	require.NoError(t, err)
	for _, match := range []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan} {
		list, err := k.client(t).List(t, metav1.ListOptions{ResourceVersion: now.GetResourceVersion(), ResourceVersionMatch: match})
		require.NoError(t, err, match)
		assert.True(t, slices.ContainsFunc(list.Items, func(o unstructured.Unstructured) bool { return o.GetName() == name }), match)
		if match == metav1.ResourceVersionMatchExact {
			assert.Equal(t, now.GetResourceVersion(), list.GetResourceVersion())
			assert.Equal(t, now.Items, list.Items)
		}
	}
	_, err = k.client(t).List(t, metav1.ListOptions{ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	status := statusOf(t, err)
	assert.Equal(t, int32(http.StatusUnprocessableEntity), status.Code)
	assert.Contains(t, status.Message, "resourceVersionMatch is forbidden unless resourceVersion is provided")
}

// misfits runs commands that kubectl refuses for the kind, or that need the subresource scale.
func misfits(t *T, k *kind) {
	name := k.resource() + "/" + k.settled(t).GetName()
	for _, args := range [][]string{
		{"scale", "--replicas=2", name}, {"autoscale", "--max=2", name}, {"rollout", "status", name}, {"rollout", "restart", name},
		{"set", "image", name, "a=b"}, {"expose", "--port=1", name}, {"logs", name},
	} {
		out := t.try(k.User, append(args, "--request-timeout=10s")...)
		assert.Equal(t, 1, out.code, "kubectl %s: %s", strings.Join(args, " "), out)
		assert.Regexp(t, `(?i)^error`, out.stderr, "kubectl %s", strings.Join(args, " "))
	}
}

// rawRestore creates an object again from the output of kubectl, with status, UID, resourceVersion
// and owners.
func rawRestore(t *T, k *kind) {
	obj, _ := applied(t, k)
	k.quiet(t, obj.GetName())
	before := k.get(t, obj.GetName())
	text := t.kubectl(k.User, "get", k.resource(), obj.GetName(), "-o", "yaml", "--show-managed-fields").stdout
	t.kubectl(k.User, "delete", k.resource(), obj.GetName(), "--timeout=60s")
	out := t.command(k.User, text, nil, "kubectl", "create", "-f", "-")
	require.Zero(t, out.code, "kubectl create -f: %s", out)
	after := k.get(t, obj.GetName())
	assert.Equal(t, before.Object["spec"], after.Object["spec"])
	assert.Equal(t, before.GetLabels(), after.GetLabels())
	assert.NotEqual(t, before.GetUID(), after.GetUID())
	parsed := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(text), &parsed))
	out = t.command(k.User, text, nil, "kubectl", "replace", "-f", "-")
	assert.NotZero(t, out.code, "the export of another object must not replace this one")
	assert.Contains(t, out.stderr, "Conflict")
}
