package apiserver

import (
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"macrack.io/macrack/pkg/registry/requestuser"
)

const (
	// maxWatchesOfAUser is the number of watches that a user may have open at one server. Priority
	// and fairness reserves seats for a change in proportion to its watches. With 1,000 watches of
	// one user, each change of that user holds a seat for half a second, which others wait for.
	maxWatchesOfAUser = 100
	// retryWatchAfter is after how many seconds a client tries to open a refused watch again.
	retryWatchAfter = 5
)

// limitWatches adds a filter that refuses further watches of a user who has too many.
func (c *Config) limitWatches() {
	build := c.Generic.BuildHandlerChainFunc
	c.Generic.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return build(newWatchLimit(handler), config)
	}
}

// A watchLimit limits the watches that each user has open.
type watchLimit struct {
	handler http.Handler

	mu   sync.Mutex
	open map[string]int // by subject
}

func newWatchLimit(handler http.Handler) *watchLimit {
	return &watchLimit{handler: handler, open: map[string]int{}}
}

func (l *watchLimit) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, _ := genericapirequest.RequestInfoFrom(req.Context())
	u, _ := genericapirequest.UserFrom(req.Context())
	if info == nil || info.Verb != "watch" || u == nil || isUnlimited(u) {
		l.handler.ServeHTTP(w, req)
		return
	}
	subject := requestuser.Subject(u)
	if !l.enter(subject) {
		err := apierrors.NewTooManyRequests(fmt.Sprintf("%s has %d watches open at this server, which is the limit; close some, or watch all objects of a namespace at once", subject, maxWatchesOfAUser), retryWatchAfter)
		responsewriters.ErrorNegotiated(err, Codecs, schema.GroupVersion{Version: "v1"}, w, req)
		return
	}
	defer l.leave(subject)
	l.handler.ServeHTTP(w, req)
}

func (l *watchLimit) enter(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[name] >= maxWatchesOfAUser {
		return false
	}
	l.open[name]++
	return true
}

func (l *watchLimit) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[name]--; l.open[name] == 0 {
		delete(l.open, name)
	}
}
