package apiserver

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/time/rate"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/limiters"
	"macrack.io/macrack/pkg/registry/requestuser"
)

const (
	// defaultUserQPS and defaultUserBurst allow a tenant to start hundreds of instances at once.
	// Two servers with these limits take about a tenth of the time of two processors.
	defaultUserQPS   = 20
	defaultUserBurst = 200

	// maxUsers is the number of users whose requests are counted.
	maxUsers = 10000
)

// limitRates refuses requests of a user who sends too many. Priority and fairness serves users in
// turn, but lets one user who sends requests without pause keep all processors busy, which delays
// the requests of the others. The limit precedes queues and authorization, so a refused request
// costs little.
func (c *Config) limitRates() {
	if c.UserQPS > 0 && c.Generic.FlowControl != nil {
		c.Generic.FlowControl = newRateLimit(c.Generic.FlowControl, clock.RealClock{}, rate.Limit(c.UserQPS), c.UserBurst)
	}
}

// A rateLimit is a flow control that also limits the requests of each user.
type rateLimit struct {
	utilflowcontrol.Interface
	clock clock.PassiveClock
	users *limiters.Limiters // by subject
}

func newRateLimit(inner utilflowcontrol.Interface, clock clock.PassiveClock, qps rate.Limit, burst int) *rateLimit {
	return &rateLimit{Interface: inner, clock: clock, users: limiters.New(maxUsers, qps, burst)}
}

// Handle executes the request, or returns without it; the server then responds with 429 and
// Retry-After.
func (l *rateLimit) Handle(ctx context.Context, digest utilflowcontrol.RequestDigest, note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() fcrequest.WorkEstimate, queued fairqueuing.QueueNoteFn, execute func(),
) {
	if !isProbe(digest) && !isUnlimited(digest.User) && !l.users.Get(requestuser.Subject(digest.User)).AllowN(l.clock.Now(), 1) {
		note(overLimit, overLimitLevel, "")
		return
	}
	l.Interface.Handle(ctx, digest, note, estimate, queued, execute)
}

// overLimit and overLimitLevel stand for the flow of refused requests in the server's log and
// metrics.
var (
	overLimit      = &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "macrack-over-limit"}}
	overLimitLevel = &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "macrack-over-limit"}}
)

// isProbe reports whether a request can be a probe. All probes share the anonymous user.
func isProbe(digest utilflowcontrol.RequestDigest) bool {
	return !digest.RequestInfo.IsResourceRequest && digest.User.GetName() == user.Anonymous
}

// isUnlimited reports whether a user has no limit: system:masters, and the components of MacRack
// and Kubernetes.
func isUnlimited(u user.Info) bool {
	return slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) || componentOf(u) != nil ||
		slices.Contains(u.GetGroups(), kubeSystem) || strings.HasPrefix(u.GetName(), "system:kube-")
}

// kubeSystem is the group of the service accounts of Kubernetes' own controllers, such as the
// garbage collector.
var kubeSystem = serviceaccount.MakeNamespaceGroupName(metav1.NamespaceSystem)
