package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

func TestRateLimit(t *testing.T) {
	const qps, burst = 10, 3
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	served := 0
	limit := newRateLimit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }), clock, qps, burst)
	request := func(who user.Info) *http.Response {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/rack.macrack.io/v1alpha1/macnodes", nil)
		recorder := httptest.NewRecorder()
		limit.ServeHTTP(recorder, req.WithContext(genericapirequest.WithUser(req.Context(), who)))
		return recorder.Result()
	}
	alice := &user.DefaultInfo{Name: "alice"}
	for range burst {
		assert.Equal(t, http.StatusOK, request(alice).StatusCode)
	}
	refused := request(alice)
	assert.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
	assert.Equal(t, "1", refused.Header.Get("Retry-After"))
	assert.Equal(t, burst, served)
	assert.Equal(t, http.StatusOK, request(&user.DefaultInfo{Name: "bob"}).StatusCode, "each user has a limit")

	clock.SetTime(clock.Now().Add(time.Second / qps))
	assert.Equal(t, http.StatusOK, request(alice).StatusCode)
	assert.Equal(t, http.StatusTooManyRequests, request(alice).StatusCode)

	for _, who := range []*user.DefaultInfo{
		{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}},
		{Name: "system:node:mac-1", Groups: []string{rules.NodesGroup}},
		{Name: requestuser.Controllers},
		{Name: "system:kube-controller-manager"},
		{Name: "system:serviceaccount:kube-system:generic-garbage-collector", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}},
	} {
		for range burst + 1 {
			assert.Equal(t, http.StatusOK, request(who).StatusCode, who.Name)
		}
	}
}
