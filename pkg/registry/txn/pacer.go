package txn

import (
	"context"
	"sync"

	"golang.org/x/time/rate"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"macrack.io/macrack/pkg/limiters"
)

const (
	// maxPaced limits the delayed writes of one user, because each takes a seat of API priority and
	// fairness.
	maxPaced = 16
	// maxLimiters limits the number of tracked pairs of user and object; the least recently used
	// are evicted.
	maxLimiters = 1 << 12
)

// A WriteLimit limits the rate at which a user writes one object. Writes of an object are
// serialized and sent to all its watchers, so a user who repeats a write in a tight loop would slow
// down all others.
//
// It applies to updates and patches of the object itself. Deletions and writes of subresources are
// not limited, because they end work that a user has started.
type WriteLimit struct {
	Rate  rate.Limit // a second, in one server
	Burst int
	// Subject returns the name under which the writes of a user are counted.
	Subject func(user.Info) string
	Exempt  func(user.Info) bool
}

// WithWriteLimit delays writes beyond the limit, and refuses them with status 429 if the delay
// would be too long.
func WithWriteLimit(limit WriteLimit) Option {
	return func(b *Backend) { b.pacer = newPacer(limit) }
}

// A pacer enforces a WriteLimit.
type pacer struct {
	limit    WriteLimit
	limiters *limiters.Limiters // by subject and key

	mu      sync.Mutex
	waiting map[string]int // by subject
}

func newPacer(limit WriteLimit) *pacer {
	return &pacer{limit: limit, limiters: limiters.New(maxLimiters, limit.Rate, limit.Burst), waiting: map[string]int{}}
}

// wait delays a request until it may write a key. A nil pacer delays nothing.
func (p *pacer) wait(ctx context.Context, key string) error {
	u, ok := genericapirequest.UserFrom(ctx)
	if p == nil || !ok || !changes(ctx) || p.limit.Exempt(u) {
		return nil
	}
	subject := p.limit.Subject(u)
	limiter := p.limiters.Get(subject + "\n" + key)
	if limiter.Allow() {
		return nil
	}
	if !p.enter(subject) {
		return errTooFast
	}
	defer p.exit(subject)
	if err := limiter.Wait(ctx); err != nil {
		return errTooFast
	}
	return nil
}

// changes reports whether the request is an update or a patch of an object itself.
func changes(ctx context.Context) bool {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	return ok && info.Subresource == "" && (info.Verb == "update" || info.Verb == "patch")
}

func (p *pacer) enter(subject string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[subject] >= maxPaced {
		return false
	}
	p.waiting[subject]++
	return true
}

func (p *pacer) exit(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[subject]--; p.waiting[subject] == 0 {
		delete(p.waiting, subject)
	}
}
