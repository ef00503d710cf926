package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settledPod returns the name of the placeholder pod of the shared instance.
func settledPod(t *T) string {
	instance, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
	require.NoError(t, err)
	pod := field(instance, "status.podName")
	require.NotEmpty(t, pod)
	return pod
}

func placeholderPod(t *T) {
	pod := settledPod(t)
	t.kubectl(tenant, "label", "pod", pod, "team=ios", "--overwrite")
	t.kubectl(tenant, "annotate", "pod", pod, "team=ios", "--overwrite")
	for _, user := range []string{tenant, admin} {
		namespace := "--namespace=" + t.world.namespace
		for _, tt := range []struct {
			args    []string
			refused string
		}{
			{[]string{"label", "pod", pod, "macrack.io/instance=other", "--overwrite"}, "use another prefix"},
			{[]string{"annotate", "pod", pod, "macrack.io/instance-uid-"}, "keep them"},
			{[]string{"patch", "pod", pod, "--type=merge", "-p", `{"metadata":{"ownerReferences":null}}`}, "delete or stop the MacOSInstance instead"},
			{[]string{"delete", "pod", pod, "--wait=false"}, "delete or stop the MacOSInstance"},
			{[]string{"delete", "pod", pod, "--grace-period=0", "--force", "--wait=false"}, "delete or stop the MacOSInstance"},
		} {
			out := t.try(user, append(tt.args, namespace)...)
			assert.NotZero(t, out.code, "%s: kubectl %s", user, strings.Join(tt.args, " "))
			assert.Contains(t, out.stderr, tt.refused, "%s: kubectl %s", user, strings.Join(tt.args, " "))
		}
	}
	out := t.try(tenant, "exec", pod, "-c", "absent", "--", "true")
	assert.Contains(t, out.stderr, "container absent is not valid for pod "+pod)
	assert.NotEmpty(t, t.kubectl(tenant, "logs", pod, "--tail=1").stdout)
	out = t.try(tenant, "attach", pod)
	assert.NotZero(t, out.code)
	assert.Contains(t, out.stderr, "use kubectl exec to run a command in it")

	there, back := filepath.Join(t.world.dir, "there"), filepath.Join(t.world.dir, "back")
	require.NoError(t, os.WriteFile(there, []byte("hello\n"), 0o600))
	t.kubectl(tenant, "cp", there, pod+":copied")
	assert.Equal(t, "hello\n", t.kubectl(tenant, "exec", pod, "--", "cat", "copied").stdout)
	t.kubectl(tenant, "cp", pod+":copied", back)
	copied, err := os.ReadFile(back)
	require.NoError(t, err)
	assert.Equal(t, "hello\n", string(copied))
}

func drain(t *T) {
	pod, mac := settledPod(t), t.world.values["mac"]
	t.cleanup(func() {
		t.try(admin, "uncordon", mac)
		t.try(admin, "taint", "node", mac, "conformance-")
	})
	out := t.try(admin, "drain", mac, "--ignore-daemonsets", "--timeout=3s")
	assert.NotZero(t, out.code)
	assert.Contains(t, out.stderr, "Cannot evict pod as it would violate the pod's disruption budget")
	t.kubectl(admin, "uncordon", mac)
	t.kubectl(admin, "taint", "node", mac, "conformance=x:NoExecute")
	select {
	case <-time.After(3 * time.Second):
	case <-t.Done():
	}
	live := t.kubectl(tenant, "get", "pod", pod, "-o", "jsonpath={.status.phase}{.metadata.deletionTimestamp}")
	assert.Equal(t, "Running", live.stdout)
	instance, err := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace).Get(t, "settled", metav1Get)
	require.NoError(t, err)
	assert.Equal(t, "Running", field(instance, "status.phase"))
}

func execEarly(t *T) {
	name := t.world.name()
	instances := t.dynamic(tenant).Resource(instanceResource).Namespace(t.world.namespace)
	_, err := instances.Create(t, t.world.instance(name, "settled"), metav1Create)
	require.NoError(t, err)
	t.cleanup(func() { t.try(tenant, "delete", "macosinstances", name, "--timeout=60s") })
	pod := ""
	require.NoError(t, t.eventually(func() error {
		instance, err := instances.Get(t, name, metav1Get)
		if err != nil {
			return err
		}
		if pod = field(instance, "status.podName"); field(instance, "status.phase") != "Running" || pod == "" {
			return fmt.Errorf("the instance is %s", field(instance, "status.phase"))
		}
		return nil
	}))
	out := t.try(tenant, "exec", pod, "--", "echo", "hello")
	assert.Zero(t, out.code, "kubectl exec as soon as the instance is Running: %s", out)
	assert.Equal(t, "hello\n", out.stdout)
}
