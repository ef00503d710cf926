package main

import (
	"errors"
	"net/http"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

var errStillWritten = errors.New("not settled yet")

var watching = []behaviour{
	{name: "watch from a resourceVersion shows every change once", verbs: append([]string{"watch"}, update...), do: watchFrom},
	{name: "a watch that streams the list ends it with a bookmark", verbs: []string{"watch", "list"}, do: watchList},
	{name: "a watch from an expired or invalid resourceVersion is refused", verbs: []string{"watch"}, do: watchRefused},
	{name: "kubectl get --watch", verbs: []string{"watch", "list"}, do: kubectlWatch},
	{name: "list and watch of the metadata only", verbs: []string{"watch", "list"}, do: metadataOnly},
}

// next returns the next event other than bookmarks.
func next(t *T, w watch.Interface) watch.Event {
	for {
		select {
		case event, ok := <-w.ResultChan():
			require.True(t, ok, "the watch ended")
			if event.Type == watch.Bookmark {
				continue
			}
			return event
		case <-t.Done():
			require.NoError(t, t.Err(), "waiting for an event")
		}
	}
}

func watchFrom(t *T, k *kind) {
	obj := k.object(t)
	k.vacate(t, obj)
	list, err := k.client(t).List(t, metav1List)
	require.NoError(t, err)
	obj, err = k.client(t).Create(t, obj, metav1Create)
	require.NoError(t, err)
	w, err := k.client(t).Watch(t, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), LabelSelector: runLabel + "=" + obj.GetName(), AllowWatchBookmarks: true})
	require.NoError(t, err)
	defer w.Stop()
	event := next(t, w)
	assert.Equal(t, watch.Added, event.Type)
	added := event.Object.(*unstructured.Unstructured)
	assert.Equal(t, obj.GetUID(), added.GetUID())
	patched := k.mustPatch(t, obj.GetName(), map[string]any{"metadata": map[string]any{"labels": map[string]any{"watched": "yes"}}})
	for {
		event = next(t, w)
		require.Equal(t, watch.Modified, event.Type)
		if event.Object.(*unstructured.Unstructured).GetResourceVersion() == patched.GetResourceVersion() {
			break
		}
	}
	// An object that no longer matches the selector is deleted for this watch.
	k.mustPatch(t, obj.GetName(), map[string]any{"metadata": map[string]any{"labels": map[string]any{runLabel: "other"}}})
	for event = next(t, w); event.Type == watch.Modified; event = next(t, w) {
	}
	assert.Equal(t, watch.Deleted, event.Type)
}

func watchList(t *T, k *kind) {
	name := k.settled(t).GetName()
	yes := true
	w, err := k.client(t).Watch(t, metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	require.NoError(t, err)
	defer w.Stop()
	seen := map[string]bool{}
	for {
		select {
		case event, ok := <-w.ResultChan():
			require.True(t, ok, "the watch ended")
			obj, ok := event.Object.(*unstructured.Unstructured)
			require.True(t, ok, "%v", event.Object)
			if event.Type == watch.Bookmark {
				assert.Equal(t, "true", obj.GetAnnotations()[metav1.InitialEventsAnnotationKey])
				assert.NotEmpty(t, obj.GetResourceVersion())
				assert.True(t, seen[name], "%s is not in the stream", name)
				return
			}
			assert.Equal(t, k.Kind, obj.GetKind())
			seen[obj.GetName()] = true
		case <-t.Done():
			require.NoError(t, t.Err(), "waiting for the bookmark")
		}
	}
}

func watchRefused(t *T, k *kind) {
	_, err := k.client(t).Watch(t, metav1.ListOptions{ResourceVersion: "soon"})
	_, configMapErr := t.dynamic(admin).Resource(configMaps).Namespace(t.world.namespace).Watch(t, metav1.ListOptions{ResourceVersion: "soon"})
	status, want := statusOf(t, err), statusOf(t, configMapErr)
	assert.Equal(t, want.Code, status.Code, "an invalid resourceVersion, as with a ConfigMap")
	assert.Equal(t, want.Message, status.Message)
	w, err := k.client(t).Watch(t, metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		assert.Equal(t, int32(http.StatusGone), statusOf(t, err).Code)
		return
	}
	defer w.Stop()
	event := next(t, w)
	if event.Type == watch.Error { // otherwise the history is complete
		assert.Equal(t, int32(http.StatusGone), event.Object.(*metav1.Status).Code)
	}
}

func kubectlWatch(t *T, k *kind) {
	name := k.settled(t).GetName()
	out := t.kubectl(k.User, "get", k.resource(), name, "--watch", "--request-timeout=2s", "--output-watch-events", "-o", "name")
	assert.Contains(t, out.stdout, name)
	assert.NotContains(t, out.stderr, "error")
}

func metadataOnly(t *T, k *kind) {
	name := k.settled(t).GetName()
	client, err := metadata.NewForConfig(t.config(k.User))
	require.NoError(t, err)
	resource := metadata.ResourceInterface(client.Resource(k.gvr()))
	if k.Namespaced {
		resource = client.Resource(k.gvr()).Namespace(k.namespace())
	}
	one, err := resource.Get(t, name, metav1Get)
	require.NoError(t, err)
	assert.Equal(t, name, one.Name)
	list, err := resource.List(t, metav1List)
	require.NoError(t, err)
	require.NotEmpty(t, list.Items)
	assert.NotEmpty(t, list.ResourceVersion)
	w, err := resource.Watch(t, metav1List)
	require.NoError(t, err)
	defer w.Stop()
	first := next(t, w)
	assert.Equal(t, watch.Added, first.Type)
	assert.IsType(t, &metav1.PartialObjectMetadata{}, first.Object)
}
