package main

import (
	"embed"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

//go:embed testdata/kinds/*.yaml
var kindFiles embed.FS

// A kind has the data in testdata/kinds about one of the served kinds.
//
// In specs and patches, ${namespace}, ${lease}, ${class}, ${serial}, ${reference} and ${digest}
// stand for values of the world. ${n} stands for a number that grows with every use.
type kind struct {
	Group      string   `json:"group"`
	Kind       string   `json:"kind"`
	Resource   string   `json:"resource"`
	Namespaced bool     `json:"namespaced"`
	ShortNames []string `json:"shortNames"`
	Category   string   `json:"category"`
	// User is the user that works with the kind: the tenant, or admin.
	User string `json:"user"`
	// Verbs are all verbs that discovery must show.
	Verbs []string `json:"verbs"`
	// Subresources are all subresources that discovery must show.
	Subresources []string `json:"subresources"`

	// ReadOnly is the reason why users cannot create objects of the kind, if they cannot.
	ReadOnly string `json:"readOnly"`
	// Name is the only name that an object of the kind can have, if there is one.
	Name string `json:"name"`
	// Spec is valid, with durations and quantities in unusual forms.
	Spec map[string]any `json:"spec"`
	// Settled is the name of an existing object of the kind with all conditions.
	Settled string `json:"settled"`
	// Change is an allowed merge patch of a settled object, a new one each time.
	Change map[string]any `json:"change"`
	// Immutable is a merge patch of a fixed field of a settled object.
	Immutable *refused `json:"immutable"`
	// Invalid is a merge patch with an invalid value.
	Invalid *refused `json:"invalid"`
	// Status is a merge patch of a status.
	Status map[string]any `json:"status"`
	// Conditions are the conditions that are True on a settled object.
	Conditions []string `json:"conditions"`
	// Fails is a merge patch of a new object that makes it fail permanently; nil if no spec does.
	Fails map[string]any `json:"fails"`
	// Fields are the field selectors other than those of the metadata, each with its path.
	Fields []string `json:"fields"`
	// Except maps inapplicable behaviours to the reason.
	Except map[string]string `json:"except"`

	world *world
}

// refused is a patch with the field that the refusal must name.
type refused struct {
	Patch map[string]any `json:"patch"`
	Field string         `json:"field"`
}

func loadKinds() ([]*kind, error) {
	files, err := kindFiles.ReadDir("testdata/kinds")
	if err != nil {
		return nil, err
	}
	var kinds []*kind
	for _, file := range files {
		data, err := kindFiles.ReadFile(path.Join("testdata/kinds", file.Name()))
		if err != nil {
			return nil, err
		}
		k := &kind{}
		if err := yaml.UnmarshalStrict(data, k); err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// serves reports whether users can use the verb.
func (k *kind) serves(verb string) bool {
	return slices.Contains(k.Verbs, verb) && (k.ReadOnly == "" || slices.Contains([]string{"get", "list", "watch"}, verb))
}

// computed reports whether objects of the kind are computed for each read, with its time.
func (k *kind) computed() bool {
	return k.Resource == "compliancereports" || k.Resource == "usagereports"
}

func (k *kind) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: "v1alpha1", Resource: k.Resource}
}

func (k *kind) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: "v1alpha1", Kind: k.Kind}
}

// resource returns the unambiguous name of the kind for kubectl.
func (k *kind) resource() string { return k.Resource + "." + k.Group }

// path returns the path of the collection, or of an object.
func (k *kind) path(name ...string) string {
	p := "/apis/" + k.Group + "/v1alpha1/"
	if k.Namespaced {
		p += "namespaces/" + k.namespace() + "/"
	}
	return p + strings.Join(append([]string{k.Resource}, name...), "/")
}

func (k *kind) namespace() string {
	if k.Namespaced {
		return k.world.namespace
	}
	return ""
}

func (k *kind) in(client dynamic.Interface) dynamic.ResourceInterface {
	if k.Namespaced {
		return client.Resource(k.gvr()).Namespace(k.namespace())
	}
	return client.Resource(k.gvr())
}

// client returns the dynamic client of the kind's user.
func (k *kind) client(t *T) dynamic.ResourceInterface {
	return k.in(t.dynamic(k.User))
}

// object returns a new object that has not been created.
func (k *kind) object(t *T) *unstructured.Unstructured {
	name := k.Name
	if name == "" {
		name = t.world.name()
	}
	return k.named(t, name)
}

func (k *kind) named(t *T, name string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": name, "labels": map[string]any{runLabel: name}},
		"spec":     t.world.expand(k.Spec),
	}}
	obj.SetGroupVersionKind(k.gvk())
	obj.SetNamespace(k.namespace())
	return obj
}

// create creates an object, which is deleted at the end.
func (k *kind) create(t *T) *unstructured.Unstructured {
	obj := k.object(t)
	k.vacate(t, obj)
	created, err := k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err, "create %s", k.Kind)
	return created
}

// vacate makes room for a new object, and restores the former one at the end.
func (k *kind) vacate(t *T, obj *unstructured.Unstructured) {
	name := obj.GetName()
	if k.Name != "" {
		original, err := k.client(t).Get(t, name, metav1Get)
		require.NoError(t, err, "get the existing object")
		require.NoError(t, k.client(t).Delete(t, name, metav1Delete))
		t.cleanup(func() {
			_ = k.client(t).Delete(t, name, metav1Delete)
			restored := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": original.GetAPIVersion(), "kind": original.GetKind(),
				"metadata": map[string]any{"name": name, "labels": original.Object["metadata"].(map[string]any)["labels"]}, "spec": original.Object["spec"],
			}}
			_, err := k.client(t).Create(t, restored, metav1Create)
			require.NoError(t, err, "restore the former object")
		})
		return
	}
	t.cleanup(func() {
		k.remove(t, name)
	})
}

// remove deletes an object, including the suite's finalizers, and waits until it is gone.
func (k *kind) remove(t *T, name string) {
	k.in(t.dynamic(k.User))
	client := k.in(t.dynamic(admin))
	err := t.eventually(func() error {
		obj, err := client.Get(t, name, metav1Get)
		if isNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if ours := slices.DeleteFunc(obj.GetFinalizers(), func(f string) bool { return strings.Contains(f, "macrack.io/") }); len(ours) > 0 {
			_, _ = client.Patch(t, name, mergePatch, []byte(fmt.Sprintf(`{"metadata":{"finalizers":%s}}`, toJSON(without(obj.GetFinalizers(), ours)))), metav1Patch)
		}
		if obj.GetDeletionTimestamp() == nil {
			if err := client.Delete(t, name, metav1Delete); err != nil && !isNotFound(err) {
				return err
			}
		}
		return fmt.Errorf("%s %s still exists, with finalizers %v", k.Kind, name, obj.GetFinalizers())
	})
	if err != nil {
		t.Errorf("cleaning up: %v", err)
	}
}

// settled returns an existing, settled object of the kind.
func (k *kind) settled(t *T) *unstructured.Unstructured {
	name := t.world.text(k.Settled)
	if name == "" {
		if k.serves("create") {
			name := k.create(t).GetName()
			k.quiet(t, name)
			return k.get(t, name)
		}
		list, err := k.client(t).List(t, metav1List)
		require.NoError(t, err)
		require.NotEmpty(t, list.Items, "the cluster has no %s", k.Kind)
		return &list.Items[0]
	}
	obj, err := k.client(t).Get(t, name, metav1Get)
	require.NoError(t, err)
	return obj
}

// manifest writes the object to a file, as a user would, and returns the path.
func manifest(t *T, objects ...*unstructured.Unstructured) string {
	var docs []string
	for _, obj := range objects {
		data, err := yaml.Marshal(obj.Object)
		require.NoError(t, err)
		docs = append(docs, string(data))
	}
	f, err := os.CreateTemp(t.world.dir, "*.yaml")
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteString(strings.Join(docs, "---\n"))
	require.NoError(t, err)
	return f.Name()
}

// expand replaces the variables by values of the world.
func (w *world) expand(value any) any {
	switch v := value.(type) {
	case string:
		return w.text(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = w.expand(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[key] = w.expand(v[key])
		}
		return out
	case float64: // JSON numbers of a spec are whole
		return int64(v)
	}
	return value
}

func (w *world) text(s string) string {
	return os.Expand(s, func(name string) string {
		if name == "n" {
			return fmt.Sprint(w.next())
		}
		return w.values[name]
	})
}
