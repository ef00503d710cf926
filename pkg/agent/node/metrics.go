package node

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const metricsPath = "/metrics"

// Lifetimes of the answers of kube-apiserver: those of kubelets.
const (
	tokenTTL   = 2 * time.Minute
	allowedTTL = 5 * time.Minute
	reviewTime = 10 * time.Second
)

// reviewRate and reviewBurst limit the scrapes with a token. Each may need two requests to
// kube-apiserver, which share the request limit of the agent with its own work.
const (
	reviewRate  = 2
	reviewBurst = 10
	// maxAllowed is the number of users whose permission is remembered.
	maxAllowed = 64
)

// scrapers decides who may read the metrics of the Mac. As with a kubelet, the client presents a
// bearer token that kube-apiserver accepts, of a user who may get nodes/metrics of this Node.
type scrapers struct {
	node    string
	client  kubernetes.Interface
	tokens  authenticator.Request
	allowed *cache.LRUExpireCache
	limit   *rate.Limiter
}

func newScrapers(node string, client kubernetes.Interface) (*scrapers, error) {
	tokens, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient:  client.AuthenticationV1(),
		TokenAccessReviewTimeout: reviewTime,
		WebhookRetryBackoff:      options.DefaultAuthWebhookRetryBackoff(),
		CacheTTL:                 tokenTTL,
	}.New()
	if err != nil {
		return nil, err
	}
	return &scrapers{
		node: node, client: client, tokens: tokens, allowed: cache.NewLRUExpireCache(maxAllowed), limit: rate.NewLimiter(reviewRate, reviewBurst),
	}, nil
}

// only returns a handler that serves next to permitted clients, and to kube-apiserver, which has
// authorized its client.
func (s *scrapers) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet:
			http.Error(w, "metrics can only be read", http.StatusMethodNotAllowed)
			return
		case isKubeAPIServer(r):
			next.ServeHTTP(w, r)
			return
		case r.Header.Get("Authorization") == "":
			unauthorized(w, "a bearer token is required; use that of a user who may get nodes/metrics")
			return
		case !s.limit.Allow():
			http.Error(w, "too many scrapes; retry in a second", http.StatusTooManyRequests)
			return
		}
		response, ok, err := s.tokens.AuthenticateRequest(r)
		if err != nil || !ok {
			klog.V(2).InfoS("Scrape refused", "remote", r.RemoteAddr, "err", err)
			unauthorized(w, "the bearer token is not valid")
			return
		}
		allowed, err := s.mayScrape(r.Context(), response.User)
		switch {
		case err != nil:
			klog.ErrorS(err, "Failed to authorize a scrape", "user", response.User.GetName())
			http.Error(w, "the permission cannot be checked now; retry later", http.StatusServiceUnavailable)
		case !allowed:
			http.Error(w, "user "+response.User.GetName()+" may not get nodes/metrics of "+s.node, http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// unauthorized refuses a request of an unknown client, and closes its connection.
func unauthorized(w http.ResponseWriter, message string) {
	w.Header().Set("Connection", "close")
	http.Error(w, message, http.StatusUnauthorized)
}

// mayScrape reports whether a user may get nodes/metrics of this Node. Permissions are remembered,
// refusals are not.
func (s *scrapers) mayScrape(ctx context.Context, u user.Info) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "metrics", Name: s.node},
	}
	for key, value := range u.GetExtra() {
		spec.Extra[key] = value
	}
	key := spec.String()
	if _, found := s.allowed.Get(key); found {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	review, err := s.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	if review.Status.Allowed {
		s.allowed.Add(key, true, allowedTTL)
	}
	return review.Status.Allowed, nil
}
