package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"macrack.io/macrack/test/cluster/await"

	"macrack.io/macrack/test/cluster/build"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"macrack.io/macrack/test/cluster"
)

const (
	admin  = "admin"
	tenant = "conformance" // a user, with the role edit in the suite's namespaces

	runLabel  = "conformance"
	finalizer = "conformance.example.com/keep"

	mergePatch = types.MergePatchType
	// patience is the timeout of every wait on a busy machine.
	patience = time.Minute
)

var (
	metav1Create = metav1.CreateOptions{}
	metav1Get    = metav1.GetOptions{}
	metav1List   = metav1.ListOptions{}
	metav1Update = metav1.UpdateOptions{}
	metav1Patch  = metav1.PatchOptions{}
	metav1Delete = metav1.DeleteOptions{}

	leaseResource    = schema.GroupVersionResource{Group: "rack.macrack.io", Version: "v1alpha1", Resource: "macnodeleases"}
	instanceResource = schema.GroupVersionResource{Group: "instance.macrack.io", Version: "v1alpha1", Resource: "macosinstances"}
	imageResource    = schema.GroupVersionResource{Group: "image.macrack.io", Version: "v1alpha1", Resource: "macosimages"}
	macResource      = schema.GroupVersionResource{Group: "rack.macrack.io", Version: "v1alpha1", Resource: "macnodes"}
	recordResource   = schema.GroupVersionResource{Group: "rack.macrack.io", Version: "v1alpha1", Resource: "auditrecords"}
)

// A world is the cluster with the objects that all behaviours share: the tenant's namespace with a
// bound lease and one instance.
type world struct {
	cluster   *cluster.Cluster
	root, dir string
	run       string
	count     atomic.Int64
	namespace string
	clients   map[string]dynamic.Interface
	values    map[string]string
}

func (w *world) next() int64 { return w.count.Add(1) }

// name returns a unique name.
func (w *world) name() string { return fmt.Sprintf("c-%s-%d", w.run, w.next()) }

func prepare(ctx context.Context, c *cluster.Cluster, leases int) (_ *world, err error) {
	root, err := build.Root()
	if err != nil {
		return nil, err
	}
	w := &world{cluster: c, root: root, namespace: tenant, clients: map[string]dynamic.Interface{}, values: map[string]string{},
		run: fmt.Sprintf("%x", time.Now().Unix()&0xffffff)}
	w.count.Store(3000 + time.Now().Unix()%3000) // from 3000 hours on, durations are valid in every field, and differ from those of the last run
	if w.dir, err = os.MkdirTemp("", "conformance-"); err != nil {
		return nil, err
	}
	for _, user := range []string{admin, tenant} {
		config, err := c.RESTConfig(user)
		if err != nil {
			return nil, err
		}
		if w.clients[user], err = dynamic.NewForConfig(config); err != nil {
			return nil, err
		}
	}
	if err := w.build(ctx); err != nil {
		return nil, err
	}
	t := &T{Context: ctx, world: w}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.furnish(t, leases)
	}()
	<-done
	if len(t.failures) > 0 {
		if strings.Contains(t.failures[0], cluster.ErrNoFreeMac.Error()) {
			return nil, cluster.ErrNoFreeMac
		}
		return nil, errors.New(strings.Join(t.failures, "\n"))
	}
	return w, nil
}

// build builds helm and kustomize from their modules into .dev/bin.
func (w *world) build(ctx context.Context) error {
	for name, pkg := range map[string]string{"helm": "helm.sh/helm/v4/cmd/helm", "kustomize": "sigs.k8s.io/kustomize/kustomize/v5"} {
		if err := build.Program(ctx, w.bin(name), "test/conformance", pkg); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) bin(name string) string { return filepath.Join(w.root, ".dev", "bin", name) }

// furnish creates the shared objects, or reuses those of an earlier run. It fails if too few Macs
// are free for the scenarios.
func (w *world) furnish(t *T, needed int) {
	w.makeNamespace(t, w.namespace)
	list, err := t.dynamic(admin).Resource(macResource).List(t, metav1List)
	require.NoError(t, err)
	free := 0
	err = t.eventually(func() error {
		free = 0
		list, err = t.dynamic(admin).Resource(macResource).List(t, metav1List)
		if err != nil {
			return err
		}
		for _, mac := range list.Items {
			switch phase := field(&mac, "status.phase"); phase {
			case "Available":
				free++
			case "Pending":
				if strings.HasPrefix(mac.GetName(), "mac-") {
					return fmt.Errorf("Mac %s is %s", mac.GetName(), phase)
				}
			}
		}
		return nil
	})
	require.NoError(t, err)
	image, err := t.dynamic(admin).Resource(imageResource).Get(t, "macos-26-xcode-26", metav1Get)
	require.NoError(t, err)
	w.values["image"] = image.GetName()
	w.values["reference"], w.values["digest"] = field(image, "spec.source.reference"), field(image, "spec.source.digest")
	w.values["class"] = "small"
	w.values["empty"] = "studio" // a class without Macs

	leases := t.dynamic(tenant).Resource(leaseResource).Namespace(w.namespace)
	lease, err := leases.Get(t, "settled", metav1Get)
	bound := err == nil && lease.GetDeletionTimestamp() == nil && field(lease, "status.nodeName") != ""
	if !bound {
		needed++
	}
	if free < needed {
		require.Fail(t, cluster.ErrNoFreeMac.Error(), "%d are free", free)
	}
	if !bound {
		lease = &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"className": "base", "caches": []any{map[string]any{"name": "gems", "sizeLimit": "64Mi"}},
		}}}
		lease.SetAPIVersion("rack.macrack.io/v1alpha1")
		lease.SetKind("MacNodeLease")
		lease.SetName("settled")
		_, err = leases.Create(t, lease, metav1Create)
		require.NoError(t, err)
	}
	require.NoError(t, t.eventually(func() error {
		lease, err = leases.Get(t, "settled", metav1Get)
		if err == nil && field(lease, "status.nodeName") == "" {
			err = errors.New("lease settled is " + field(lease, "status.phase"))
		}
		return err
	}))
	w.values["lease"], w.values["mac"] = lease.GetName(), field(lease, "status.nodeName")

	instances := t.dynamic(tenant).Resource(instanceResource).Namespace(w.namespace)
	require.NoError(t, t.eventually(func() error {
		is, err := instances.Get(t, "settled", metav1Get)
		switch {
		case isNotFound(err):
			_, err = instances.Create(t, w.instance("settled", "settled"), metav1Create)
			if err != nil {
				return err
			}
		case err != nil:
			return err
		case field(is, "status.phase") == "Running":
			return nil
		case field(is, "status.phase") == "Stopped" || field(is, "status.phase") == "Failed":
			_ = instances.Delete(t, "settled", metav1Delete)
		}
		return errors.New("instance settled is " + field(is, "status.phase") + ": " + field(is, "status.message"))
	}))
}

func (w *world) instance(name, lease string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"leaseName": lease, "className": "small", "imageName": w.values["image"],
	}}}
	obj.SetAPIVersion("instance.macrack.io/v1alpha1")
	obj.SetKind("MacOSInstance")
	obj.SetName(name)
	return obj
}

func (w *world) lease(name, class string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"className": class}}}
	obj.SetAPIVersion("rack.macrack.io/v1alpha1")
	obj.SetKind("MacNodeLease")
	obj.SetName(name)
	return obj
}

// makeNamespace creates a namespace in which the tenant has the role edit.
func (w *world) makeNamespace(t *T, name string) {
	t.apply(admin, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[2]s}]
`, name, tenant))
}

func (w *world) close() {
	_ = os.RemoveAll(w.dir)
}

func (t *T) dynamic(user string) dynamic.Interface { return t.world.clients[user] }

func (t *T) config(user string) *rest.Config {
	config, err := t.world.cluster.RESTConfig(user)
	require.NoError(t, err)
	return config
}

// output is the output and the exit code of a command.
type output struct {
	stdout, stderr string
	code           int
}

func (o output) String() string { return strings.TrimSpace(o.stdout + o.stderr) }

// command runs a program as a user, with a kubeconfig whose namespace is the suite's.
func (t *T) command(user, stdin string, env []string, name string, args ...string) output {
	cmd := exec.CommandContext(t, t.world.bin(name), args...)
	kubeconfig, err := t.world.cluster.Kubeconfig(user)
	require.NoError(t, err)
	cmd.Env = append(os.Environ(), append([]string{"KUBECONFIG=" + kubeconfig, "KUBECACHEDIR=" + filepath.Join(t.world.dir, "cache-"+user), "KUBERC=off",
		"HOME=" + t.world.dir, "PATH=" + filepath.Join(t.world.root, ".dev", "bin") + ":" + os.Getenv("PATH")}, env...)...)
	cmd.Dir = t.world.root
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return output{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
}

// kubectl runs kubectl, which must succeed.
func (t *T) kubectl(user string, args ...string) output {
	out := t.try(user, args...)
	require.Zero(t, out.code, "kubectl %s\n%s", strings.Join(args, " "), out)
	return out
}

// try runs kubectl, which may fail.
func (t *T) try(user string, args ...string) output {
	if user == tenant && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--namespace=") || a == "-A" }) {
		// The flags go before a `--`, which ends the flags.
		args = append([]string{"--namespace=" + t.world.namespace}, args...)
	}
	return t.command(user, "", nil, "kubectl", args...)
}

// apply applies a manifest given as text.
func (t *T) apply(user, text string, args ...string) output {
	out := t.command(user, text, nil, "kubectl", append([]string{"apply", "-f", "-"}, args...)...)
	require.Zero(t, out.code, "kubectl apply: %s", out)
	return out
}

// eventually waits until check returns no error.
func (t *T) eventually(check func() error) error {
	return await.Success(t, patience, 200*time.Millisecond, check)
}

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }

// field returns a field as text, "" if it is not set.
func field(obj *unstructured.Unstructured, path string) string {
	if obj == nil {
		return ""
	}
	value, ok, _ := unstructured.NestedFieldNoCopy(obj.Object, strings.Split(path, ".")...)
	if !ok || value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

func toJSON(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // the suite's own values
	}
	return string(data)
}

func without(all, drop []string) []string {
	out := []string{}
	for _, s := range all {
		if !slices.Contains(drop, s) {
			out = append(out, s)
		}
	}
	return out
}
