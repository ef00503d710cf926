package apiserver

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/rules"
)

func TestComponentAuthorizer(t *testing.T) {
	agent := &user.DefaultInfo{Name: "system:node:mac-1", Groups: []string{rules.NodesGroup}}
	controllers := &user.DefaultInfo{Name: requestuser.Controllers}
	tenant := &user.DefaultInfo{Name: "alice", Groups: []string{"acme"}}
	const (
		ofAgents      = "[system:nodes] patch macosinstances/status /"
		ofControllers = requestuser.Controllers + "[] patch macosinstances/status /"
		ofOne         = "system:node:mac-1[system:nodes] patch macosinstances/status acme/vm-1"
		ofTenant      = "alice[acme] patch macosinstances/status acme/vm-1"
	)
	for name, tt := range map[string]struct {
		user    user.Info
		allowed map[string]bool
		fails   map[string]bool
		asked   []string
		want    authorizer.Decision
		err     bool
	}{
		"all agents may access all":    {user: agent, allowed: map[string]bool{ofAgents: true}, asked: []string{ofAgents}, want: authorizer.DecisionAllow},
		"the controllers":              {user: controllers, allowed: map[string]bool{ofControllers: true}, asked: []string{ofControllers}, want: authorizer.DecisionAllow},
		"an agent that may access one": {user: agent, allowed: map[string]bool{ofOne: true}, asked: []string{ofAgents, ofOne}, want: authorizer.DecisionAllow},
		"an agent without a role":      {user: agent, asked: []string{ofAgents, ofOne}, want: authorizer.DecisionNoOpinion},
		"the question about all fails": {user: agent, fails: map[string]bool{ofAgents: true}, asked: []string{ofAgents}, want: authorizer.DecisionNoOpinion, err: true},
		"a tenant":                     {user: tenant, asked: []string{ofTenant}, want: authorizer.DecisionNoOpinion},
		"no user":                      {allowed: map[string]bool{ofAgents: true}, asked: []string{"- patch macosinstances/status acme/vm-1"}, want: authorizer.DecisionNoOpinion},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			delegate := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				who := "-"
				if u := a.GetUser(); u != nil {
					who = u.GetName() + fmt.Sprint(u.GetGroups())
				}
				question := fmt.Sprintf("%s %s %s/%s %s/%s", who, a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName())
				asked = append(asked, question)
				assert.True(t, a.IsResourceRequest())
				assert.Equal(t, "instance.macrack.io/v1alpha1", a.GetAPIGroup()+"/"+a.GetAPIVersion())
				if tt.fails[question] {
					return authorizer.DecisionNoOpinion, "", errors.New("unavailable")
				}
				if tt.allowed[question] {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
			decision, _, err := componentAuthorizer{delegate}.Authorize(t.Context(), authorizer.AttributesRecord{
				User: tt.user, Verb: "patch", Namespace: "acme", APIGroup: "instance.macrack.io", APIVersion: "v1alpha1",
				Resource: "macosinstances", Subresource: "status", Name: "vm-1", ResourceRequest: true,
			})
			assert.Equal(t, tt.err, err != nil)
			assert.Equal(t, tt.want, decision)
			assert.Equal(t, tt.asked, asked)
		})
	}
}
