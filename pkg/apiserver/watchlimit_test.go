package apiserver

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

func TestWatchLimit(t *testing.T) {
	opened, end := make(chan struct{}), make(chan struct{})
	limit := newWatchLimit(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if info, ok := genericapirequest.RequestInfoFrom(req.Context()); ok && info.Verb == "watch" {
			opened <- struct{}{}
			<-end
		}
	}))
	request := func(who user.Info, verb string) *http.Response {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/rack.macrack.io/v1alpha1/macnodes", nil)
		ctx := genericapirequest.WithRequestInfo(genericapirequest.WithUser(req.Context(), who), &genericapirequest.RequestInfo{Verb: verb})
		recorder := httptest.NewRecorder()
		limit.ServeHTTP(recorder, req.WithContext(ctx))
		return recorder.Result()
	}
	var watches sync.WaitGroup
	watch := func(who user.Info) {
		watches.Go(func() { assert.Equal(t, http.StatusOK, request(who, "watch").StatusCode) })
		<-opened
	}
	alice, bob := &user.DefaultInfo{Name: "alice"}, &user.DefaultInfo{Name: "bob"}
	unlimited := []*user.DefaultInfo{
		{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}},
		{Name: "system:node:mac-1", Groups: []string{rules.NodesGroup}},
		{Name: requestuser.Controllers},
	}
	for range maxWatchesOfAUser {
		watch(alice)
		for _, who := range unlimited {
			watch(who)
		}
	}

	refused := request(alice, "watch")
	require.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
	assert.Equal(t, "5", refused.Header.Get("Retry-After"))
	assert.Equal(t, http.StatusOK, request(alice, "list").StatusCode, "only watches are limited")
	watch(bob)
	for _, who := range unlimited {
		watch(who)
	}

	close(end)
	watches.Wait()
	assert.Empty(t, limit.open)
	go func() { <-opened }()
	assert.Equal(t, http.StatusOK, request(alice, "watch").StatusCode, "a closed watch makes room")
}
