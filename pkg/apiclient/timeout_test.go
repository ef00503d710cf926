package apiclient

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestBoundRequests(t *testing.T) {
	watching, end := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "true" {
			w.(http.Flusher).Flush()
			<-watching
			_, _ = w.Write([]byte(`{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"late"}}}`))
			w.(http.Flusher).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-end:
		}
	}))
	defer server.Close()
	release := sync.OnceFunc(func() { close(watching) })
	defer release()
	defer close(end)
	config := BoundRequests(&rest.Config{Host: server.URL}, 50*time.Millisecond)
	assert.Zero(t, config.Timeout, "it would end watches")
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	pods := client.CoreV1().Pods("acme")
	w, err := pods.Watch(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	_, err = pods.Get(context.Background(), "a", metav1.GetOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded, "a server that does not answer")
	release()
	event, open := <-w.ResultChan()
	require.True(t, open, "a watch outlives the time of a request")
	assert.Equal(t, "late", event.Object.(*corev1.Pod).Name)
}
