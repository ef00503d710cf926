package apiserver

import (
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// defaultUserQPS and defaultUserBurst allow a tenant to start hundreds of instances at once.
	// Two servers with these limits take about a tenth of the time of two processors.
	defaultUserQPS   = 20
	defaultUserBurst = 200

	// maxUsers is the number of users whose requests are counted.
	maxUsers = 10000
	// retryRequestAfter is after how many seconds a client repeats a refused request.
	retryRequestAfter = 1
)

// limitRates adds a filter that refuses requests of a user who sends too many. Priority and
// fairness serves users in turn, but lets one user who sends requests without pause keep all
// processors busy, which delays the requests of the others.
func (c *Config) limitRates() {
	if c.UserQPS == 0 {
		return
	}
	build := c.Generic.BuildHandlerChainFunc
	c.Generic.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return build(newRateLimit(handler, clock.RealClock{}, rate.Limit(c.UserQPS), c.UserBurst), config)
	}
}

// A rateLimit limits the requests of each user.
type rateLimit struct {
	handler http.Handler
	clock   clock.PassiveClock
	qps     rate.Limit
	burst   int

	mu    sync.Mutex
	users *lru.Cache // *rate.Limiter by user name
}

func newRateLimit(handler http.Handler, clock clock.PassiveClock, qps rate.Limit, burst int) *rateLimit {
	return &rateLimit{handler: handler, clock: clock, qps: qps, burst: burst, users: lru.New(maxUsers)}
}

func (l *rateLimit) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	u, _ := genericapirequest.UserFrom(req.Context())
	if u == nil || isUnlimited(u) || l.limiter(u.GetName()).AllowN(l.clock.Now(), 1) {
		l.handler.ServeHTTP(w, req)
		return
	}
	err := apierrors.NewTooManyRequests(fmt.Sprintf("user %q sends more than %g requests a second to this server; send fewer, or watch objects in place of repeated reads", u.GetName(), float64(l.qps)), retryRequestAfter)
	responsewriters.ErrorNegotiated(err, Codecs, schema.GroupVersion{Version: "v1"}, w, req)
}

func (l *rateLimit) limiter(name string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.users.Get(name); ok {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(l.qps, l.burst)
	l.users.Add(name, limiter)
	return limiter
}
