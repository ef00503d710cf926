package txn

import (
	"context"
	"testing"

	"golang.org/x/time/rate"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// request returns the context of a request.
func request(ctx context.Context, name, verb, subresource string) context.Context {
	ctx = genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: name})
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Verb: verb, Subresource: subresource})
}

// subject returns the first letter of the name of a user: alice and anna share the limits.
func subject(u user.Info) string { return u.GetName()[:1] }

func exemptAgent(u user.Info) bool { return u.GetName() == "agent" }

func TestPacer(t *testing.T) {
	const burst = 3
	p := newPacer(WriteLimit{Rate: 0, Burst: burst, Subject: subject, Exempt: exemptAgent})
	ctx, cancel := context.WithTimeout(t.Context(), maxWriteDuration)
	defer cancel()
	for i := range burst {
		if err := p.wait(request(ctx, "tenant", "patch", ""), "a"); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	for _, tt := range []struct {
		what                         string
		name, verb, subresource, key string
		refused                      bool
	}{
		{"another patch", "tenant", "patch", "", "a", true},
		{"an update", "tenant", "update", "", "a", true},
		{"of another object", "tenant", "patch", "", "b", false},
		{"by another service account of the tenant", "twin", "patch", "", "a", true},
		{"by another user", "another", "patch", "", "a", false},
		{"by an exempt user", "agent", "patch", "", "a", false},
		{"of a subresource", "tenant", "patch", "status", "a", false},
		{"a stop", "tenant", "create", "stop", "a", false},
		{"a deletion", "tenant", "delete", "", "a", false},
	} {
		err := p.wait(request(ctx, tt.name, tt.verb, tt.subresource), tt.key)
		if tt.refused != apierrors.IsTooManyRequests(err) || !tt.refused && err != nil {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
	if err := (*pacer)(nil).wait(request(ctx, "tenant", "patch", ""), "a"); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// A user has a bounded number of writes that are held back, whatever they write.
func TestPacerBoundsWaiting(t *testing.T) {
	p := newPacer(WriteLimit{Rate: rate.Limit(1e-6), Burst: 1, Subject: subject, Exempt: exemptAgent})
	ctx, cancel := context.WithCancel(t.Context())
	tenant := request(ctx, "tenant", "patch", "")
	if err := p.wait(tenant, "a"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for range maxPaced + 1 {
		go func() { done <- p.wait(tenant, "a") }()
	}
	if err := <-done; !apierrors.IsTooManyRequests(err) { // the others wait
		t.Errorf("one more than may wait: %v", err)
	}
	cancel()
	for range maxPaced {
		<-done
	}
	if len(p.waiting) != 0 {
		t.Errorf("waiting: %v", p.waiting)
	}
}

// A tenant does not get a larger share of a lock with more service accounts.
func TestFlowsOfASubject(t *testing.T) {
	b := NewBackend(nil, nil, WithWriteLimit(WriteLimit{Subject: subject, Exempt: exemptAgent}))
	flow := func(name, verb string) string { return b.flow(request(t.Context(), name, verb, "")) }
	if flow("tenant", "patch") != flow("twin", "patch") {
		t.Error("one flow for each service account")
	}
	if flow("tenant", "patch") == flow("tenant", "delete") || flow("agent", "patch") == flow("another", "patch") {
		t.Error("no flow for each verb, or for a component")
	}
}
