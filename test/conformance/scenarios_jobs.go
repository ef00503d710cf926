package main

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// job creates an instance on the shared lease that runs a script.
func job(t *T, spec map[string]any) string {
	obj := t.world.instance(t.world.name(), "settled")
	for name, value := range spec {
		require.NoError(t, unstructured.SetNestedField(obj.Object, value, "spec", name))
	}
	_, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Create(t, obj, metav1Create)
	require.NoError(t, err)
	t.cleanup(func() {
		t.try(tenant, "delete", "macosinstances", obj.GetName(), "--timeout=60s", "--ignore-not-found")
	})
	return obj.GetName()
}

// shows waits until a field of an instance, by its JSON path, has a value.
func shows(t *T, name, path, want string) {
	require.NoError(t, t.eventually(func() error {
		if got := t.try(tenant, "get", "macosinstances", name, "-o", "jsonpath="+path).stdout; got != want {
			return fmt.Errorf("%s of %s is %q, not %q", path, name, got, want)
		}
		return nil
	}))
}

func environment(t *T) {
	const value = "a-secret-of-the-conformance-suite"
	secret := "conformance-" + t.world.name()
	name := job(t, map[string]any{
		"startupScript": `echo "length ${#TOKEN} of $KIND"`,
		"env": []any{
			map[string]any{"name": "KIND", "value": "literal"},
			map[string]any{"name": "TOKEN", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": secret, "key": "token"}}},
		},
	})
	shows(t, name, `{.status.conditions[?(@.type=="EnvironmentReady")].reason}`, "SecretNotFound")
	shows(t, name, `{.status.conditions[?(@.type=="Stalled")].reason}`, "SecretNotFound")
	require.NoError(t, t.eventually(func() error {
		if out := t.kubectl(tenant, "describe", "macosinstances", name).stdout; !strings.Contains(out, "SecretNotFound") || !strings.Contains(out, "Events:") {
			return fmt.Errorf("no Event: %s", out)
		}
		return nil
	}))
	t.kubectl(tenant, "create", "secret", "generic", secret, "--from-literal=token="+value)
	t.cleanup(func() { t.try(tenant, "delete", "secret", secret) })
	shows(t, name, "{.status.startup.exitCode}", "0")
	shows(t, name, `{.status.conditions[?(@.type=="EnvironmentReady")].status}`, "True")
	instance := t.kubectl(tenant, "get", "macosinstances", name, "-o", "yaml").stdout
	assert.Contains(t, instance, fmt.Sprintf("length %d of literal", len(value)))
	pod := t.kubectl(tenant, "get", "macosinstances", name, "-o", "jsonpath={.status.podName}").stdout
	assert.NotContains(t, instance+t.kubectl(tenant, "get", "pod", pod, "-o", "yaml").stdout, value)
	assert.Equal(t, "none\n", t.kubectl(tenant, "exec", pod, "--", "sh", "-c", "echo ${TOKEN:-none}").stdout)
}

func deadline(t *T) {
	name := job(t, map[string]any{"activeDeadlineSeconds": int64(1), "ttlSecondsAfterFinished": int64(5)})
	shows(t, name, "{.status.phase}", "Failed")
	out := t.try(tenant, "get", "macosinstances", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason}`)
	if out.code == 0 { // otherwise it has been deleted already
		assert.Equal(t, "DeadlineExceeded", out.stdout)
	}
	require.NoError(t, t.eventually(func() error {
		_, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, name, metav1Get)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%s is not deleted: %w", name, err)
	}))
}
