package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
)

var codecs = scheme.Codecs.WithoutConversion()

var clients = []behaviour{
	{name: "JSON, YAML, protobuf and CBOR clients read the same", verbs: read, do: encodings},
	{name: "a protobuf client creates, updates and deletes", verbs: update, do: protobufWrites},
	{name: "a CBOR client creates, updates and deletes", verbs: update, do: cborWrites},
	{name: "controller-runtime's cache has the object", verbs: []string{"get", "list", "watch"}, do: runtimeCache},
	{name: "controller-runtime's CreateOrUpdate settles", verbs: update, do: createOrUpdate},
	{name: "controller-runtime's patches and apply", verbs: update, do: runtimePatches},
	{name: "kstatus reports Current for a settled object", verbs: read, do: kstatusCurrent},
}

func statusError(err error) apierrors.APIStatus {
	var is apierrors.APIStatus
	if errors.As(err, &is) {
		return is
	}
	return nil
}

// new returns an empty typed object of the kind.
func (k *kind) new(t *T) client.Object {
	obj, err := scheme.Scheme.New(k.gvk())
	require.NoError(t, err)
	return obj.(client.Object)
}

func toUnstructured(t *T, obj runtime.Object) map[string]any {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	require.NoError(t, err)
	return out
}

// typed returns an unstructured object as the generated type.
func (k *kind) typed(t *T, obj *unstructured.Unstructured) client.Object {
	out := k.new(t)
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, out))
	return out
}

func encodings(t *T, k *kind) {
	name := k.settled(t).GetName()
	var last string
	require.NoError(t, t.eventually(func() error {
		before := k.get(t, name)
		inJSON := k.typed(t, before)
		inProtobuf := k.new(t)
		if err := t.rest(k.User, k, "application/vnd.kubernetes.protobuf").Get().AbsPath(k.path(name)).Do(t).Into(inProtobuf); err != nil {
			return err
		}
		inProtobuf.GetObjectKind().SetGroupVersionKind(k.gvk())
		raw, err := t.rest(k.User, k, "application/yaml").Get().AbsPath(k.path(name)).SetHeader("Accept", "application/yaml").DoRaw(t)
		if err != nil {
			return err
		}
		inYAML := k.new(t)
		if err := yaml.UnmarshalStrict(raw, inYAML); err != nil {
			return err
		}
		inCBOR, err := k.in(cborClient(t, k.User)).Get(t, name, metav1Get)
		if err != nil {
			return err
		}
		if now := k.get(t, name); now.GetResourceVersion() != before.GetResourceVersion() || k.computed() && field(now, "status") != field(before, "status") {
			return errStillWritten
		}
		last = ""
		for what, obj := range map[string]client.Object{"protobuf": inProtobuf, "YAML": inYAML, "CBOR": k.typed(t, inCBOR)} {
			if k.computed() { // computed for each read, with the time
				obj.SetCreationTimestamp(inJSON.GetCreationTimestamp())
			}
			if !equality.Semantic.DeepEqual(inJSON, obj) {
				last += fmt.Sprintf("%s: %s\n", what, changes(before, &unstructured.Unstructured{Object: toUnstructured(t, obj)}))
			}
		}
		return nil
	}))
	if !k.computed() {
		assert.Empty(t, last, "differences from JSON")
	}
}

// prefersCBOR is client-go's preference for CBOR, which may become its default.
var prefersCBOR atomic.Bool

// gates are client-go's feature gates, with CBOR overridden.
type gates struct{ clientfeatures.Gates }

func (g gates) Enabled(key clientfeatures.Feature) bool {
	if key == clientfeatures.ClientsAllowCBOR || key == clientfeatures.ClientsPreferCBOR {
		return prefersCBOR.Load()
	}
	return g.Gates.Enabled(key)
}

// cborClient returns a dynamic client that prefers CBOR until the behaviour ends.
func cborClient(t *T, user string) dynamic.Interface {
	prefersCBOR.Store(true)
	t.cleanup(func() { prefersCBOR.Store(false) })
	client, err := dynamic.NewForConfig(t.config(user))
	require.NoError(t, err)
	return client
}

func protobufWrites(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	rc := t.rest(k.User, k, "application/vnd.kubernetes.protobuf")
	created := k.new(t)
	require.NoError(t, rc.Post().AbsPath(k.path()).Body(k.typed(t, obj)).Do(t).Into(created), "create")
	assert.Subset(t, k.get(t, obj.GetName()).Object["spec"], obj.Object["spec"])
	require.NoError(t, t.eventually(func() error {
		live := k.new(t)
		if err := rc.Get().AbsPath(k.path(obj.GetName())).Do(t).Into(live); err != nil {
			return err
		}
		live.SetAnnotations(map[string]string{"protobuf": "yes"})
		return rc.Put().AbsPath(k.path(obj.GetName())).Body(live).Do(t).Error()
	}), "update")
	after := k.get(t, obj.GetName())
	assert.Subset(t, after.Object["spec"], obj.Object["spec"])
	assert.EqualValues(t, 1, after.GetGeneration(), "generation")
	require.NoError(t, rc.Delete().AbsPath(k.path(obj.GetName())).Do(t).Error(), "delete")
	k.gone(t, obj.GetName())
}

func cborWrites(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	c := k.in(cborClient(t, k.User))
	created, err := c.Create(t, obj, metav1Create)
	if configMapsTakeNoCBOR(t) { // as kube-apiserver by default; the client speaks JSON after one answer of 415
		require.True(t, apierrors.IsUnsupportedMediaType(err), "the first answer to CBOR: %v", err)
		created, err = c.Create(t, obj, metav1Create)
	}
	require.NoError(t, err, "create")
	assert.Subset(t, created.Object["spec"], obj.Object["spec"])
	require.NoError(t, t.eventually(func() error {
		live, err := c.Get(t, obj.GetName(), metav1Get)
		if err != nil {
			return err
		}
		live.SetAnnotations(map[string]string{"cbor": "yes"})
		_, err = c.Update(t, live, metav1Update)
		return err
	}), "update")
	after := k.get(t, obj.GetName())
	assert.Subset(t, after.Object["spec"], obj.Object["spec"])
	assert.EqualValues(t, 1, after.GetGeneration(), "generation")
	require.NoError(t, c.Delete(t, obj.GetName(), metav1Delete), "delete")
	k.gone(t, obj.GetName())
}

// configMapsTakeNoCBOR reports whether kube-apiserver refuses CBOR.
func configMapsTakeNoCBOR(t *T) bool {
	_, err := cborClient(t, admin).Resource(configMaps).Namespace(t.world.namespace).Create(t, configMap(t, nil), metav1Create)
	return apierrors.IsUnsupportedMediaType(err)
}

// runtimeClient returns controller-runtime's client for the generated types.
func (t *T) runtimeClient(user string) client.Client {
	c, err := client.New(t.config(user), client.Options{Scheme: scheme.Scheme})
	require.NoError(t, err)
	return c
}

func (k *kind) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: k.namespace(), Name: name}
}

// runtimeCache reads the object, and only its metadata, from informers that use JSON and protobuf.
func runtimeCache(t *T, k *kind) {
	name := k.settled(t).GetName()
	options := cache.Options{Scheme: scheme.Scheme}
	if k.Namespaced {
		options.DefaultNamespaces = map[string]cache.Config{k.namespace(): {}}
	}
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		config := rest.CopyConfig(t.config(k.User))
		config.ContentType, config.AcceptContentTypes = contentType, contentType+",application/json"
		c, err := cache.New(config, options)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t)
		defer cancel()
		go func() { _ = c.Start(ctx) }()
		require.True(t, c.WaitForCacheSync(ctx))
		meta := &metav1.PartialObjectMetadata{}
		meta.SetGroupVersionKind(k.gvk())
		for _, obj := range []client.Object{k.new(t), meta} {
			require.NoError(t, c.Get(t, k.key(name), obj))
			assert.Equal(t, name, obj.GetName())
			if !k.serves("patch") {
				continue
			}
			value := t.world.name()
			t.kubectl(k.User, "annotate", k.resource(), name, "cached="+value, "--overwrite")
			require.NoError(t, t.eventually(func() error {
				if err := c.Get(t, k.key(name), obj); err != nil {
					return err
				}
				if obj.GetAnnotations()["cached"] != value {
					return errStillWritten
				}
				return nil
			}), "the cache follows")
		}
	}
}

func createOrUpdate(t *T, k *kind) {
	want := k.object(t)
	k.vacate(t, want)
	c := t.runtimeClient(k.User)
	reconcile := func(label string) controllerutil.OperationResult {
		var result controllerutil.OperationResult
		require.NoError(t, t.eventually(func() error {
			obj := k.new(t)
			obj.SetName(want.GetName())
			obj.SetNamespace(want.GetNamespace())
			var err error
			result, err = controllerutil.CreateOrUpdate(t, c, obj, func() error {
				desired := want.DeepCopy()
				live := &unstructured.Unstructured{Object: toUnstructured(t, obj)}
				live.Object["spec"] = merge(orEmpty(live.Object["spec"]), desired.Object["spec"].(map[string]any))
				live.SetLabels(map[string]string{runLabel: want.GetName(), "reconciled": label})
				return runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, obj)
			})
			if apierrors.IsConflict(err) {
				return err
			}
			require.NoError(t, err)
			return nil
		}))
		return result
	}
	assert.Equal(t, controllerutil.OperationResultCreated, reconcile("1"))
	assert.Equal(t, controllerutil.OperationResultNone, reconcile("1"), "the second time")
	assert.Equal(t, controllerutil.OperationResultUpdated, reconcile("2"))
	assert.Equal(t, controllerutil.OperationResultNone, reconcile("2"), "the fourth time")
}

func orEmpty(value any) map[string]any {
	m, _ := value.(map[string]any)
	if m == nil {
		m = map[string]any{}
	}
	return m
}

func runtimePatches(t *T, k *kind) {
	obj := k.create(t)
	c := t.runtimeClient(k.User)
	live := k.new(t)
	require.NoError(t, c.Get(t, k.key(obj.GetName()), live))
	before := live.DeepCopyObject().(client.Object)
	live.SetAnnotations(map[string]string{"merge": "yes"})
	require.NoError(t, c.Patch(t, live, client.MergeFrom(before)), "MergeFrom")
	require.NoError(t, c.Apply(t, client.ApplyConfigurationFromUnstructured(applyConfiguration(obj)), client.FieldOwner("controller"), client.ForceOwnership), "Apply")
	after := k.get(t, obj.GetName())
	assert.Equal(t, "yes", after.GetAnnotations()["merge"])
	assert.True(t, slices.ContainsFunc(after.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "controller" }))
	assert.EqualValues(t, 1, after.GetGeneration(), "generation")
}

// applyConfiguration is the apply configuration of a controller that owns the spec.
func applyConfiguration(obj *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "spec": obj.Object["spec"]}}
	out.SetName(obj.GetName())
	out.SetNamespace(obj.GetNamespace())
	return out
}

func kstatusCurrent(t *T, k *kind) {
	name := k.settled(t).GetName()
	err := t.eventually(func() error {
		result, err := status.Compute(k.get(t, name))
		require.NoError(t, err)
		if result.Status != status.CurrentStatus {
			return fmt.Errorf("kstatus reports %s: %s", result.Status, result.Message)
		}
		return nil
	})
	assert.NoError(t, err)
}
