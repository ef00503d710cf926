package apiserver

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

// unlimited is a flow control that executes every request.
type unlimited struct{ utilflowcontrol.Interface }

func (unlimited) Handle(_ context.Context, _ utilflowcontrol.RequestDigest, _ func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	_ func() fcrequest.WorkEstimate, _ fairqueuing.QueueNoteFn, execute func(),
) {
	execute()
}

func TestRateLimit(t *testing.T) {
	const qps, burst = 10, 3
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	limit := newRateLimit(unlimited{}, clock, qps, burst)
	handle := func(who user.Info, info *genericapirequest.RequestInfo) (served bool) {
		noted := ""
		limit.Handle(t.Context(), utilflowcontrol.RequestDigest{User: who, RequestInfo: info}, func(schema *flowcontrolv1.FlowSchema, _ *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			noted = schema.Name
		}, nil, nil, func() { served = true })
		assert.Equal(t, !served, noted == "macrack-over-limit", "the server reads the name of the flow of a refused request")
		return served
	}
	resource := &genericapirequest.RequestInfo{IsResourceRequest: true}
	request := func(who user.Info) bool { return handle(who, resource) }
	alice := &user.DefaultInfo{Name: "alice"}
	for range burst {
		assert.True(t, request(alice))
	}
	assert.False(t, request(alice))
	assert.True(t, request(&user.DefaultInfo{Name: "bob"}), "each user has a limit")

	clock.SetTime(clock.Now().Add(time.Second / qps))
	assert.True(t, request(alice))
	assert.False(t, request(alice))

	for _, name := range []string{"one", "two", "three"} {
		assert.True(t, request(&user.DefaultInfo{Name: "system:serviceaccount:acme:" + name}))
	}
	assert.False(t, request(&user.DefaultInfo{Name: "system:serviceaccount:acme:four"}), "the service accounts of a namespace have one limit")
	assert.True(t, request(&user.DefaultInfo{Name: "system:serviceaccount:globex:one"}))

	discovery := &genericapirequest.RequestInfo{Path: "/apis/rack.macrack.io/v1alpha1"}
	for range burst {
		assert.True(t, handle(&user.DefaultInfo{Name: "carol"}, discovery))
	}
	assert.False(t, handle(&user.DefaultInfo{Name: "carol"}, discovery), "other requests than for resources count too")

	for range burst + 1 {
		assert.True(t, handle(&user.DefaultInfo{Name: user.Anonymous}, &genericapirequest.RequestInfo{Path: "/readyz"}), "probes have no limit")
	}
	for _, who := range []*user.DefaultInfo{
		{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}},
		{Name: "system:node:mac-1", Groups: []string{rules.NodesGroup}},
		{Name: requestuser.Controllers},
		{Name: "system:kube-controller-manager"},
		{Name: "system:serviceaccount:kube-system:generic-garbage-collector", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}},
	} {
		for range burst + 1 {
			assert.True(t, request(who), who.Name)
		}
	}
}
