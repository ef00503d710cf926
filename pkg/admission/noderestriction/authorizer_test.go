package noderestriction

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"macrack.io/macrack/pkg/apis/instance"
)

var (
	agent    = &user.DefaultInfo{Name: "system:node:mac-1", Groups: []string{"system:nodes", "system:authenticated"}}
	impostor = &user.DefaultInfo{Name: "mac-1", Groups: []string{"system:nodes"}}
	tenant   = &user.DefaultInfo{Name: "system:node:mac-1", Groups: []string{"system:authenticated"}}
)

func instanceOn(nodes map[string]string) InstanceNode {
	return func(_ context.Context, namespace, name string) (string, error) {
		switch node, ok := nodes[namespace+"/"+name]; {
		case name == "broken":
			return "", errors.New("etcd is away")
		case !ok:
			return "", apierrors.NewNotFound(instance.Resource("macosinstances"), name)
		default:
			return node, nil
		}
	}
}

func TestAuthorizer(t *testing.T) {
	const rack, inst, image, config = "rack.macrack.io", "instance.macrack.io", "image.macrack.io", "config.macrack.io"
	a := NewAuthorizer(instanceOn(map[string]string{"acme/mine": "mac-1", "acme/other": "mac-2"}))
	for name, tt := range map[string]struct {
		user      user.Info
		verb      string
		group     string
		resource  string // with subresource
		namespace string
		name      string
		selector  string
		refused   string // empty: no opinion
	}{
		"its MacNode":                        {verb: "get", group: rack, resource: "macnodes", name: "mac-1"},
		"its MacNode, listed by name":        {verb: "list", group: rack, resource: "macnodes", name: "mac-1", selector: "metadata.name=mac-1"},
		"its MacNode, watched":               {verb: "watch", group: rack, resource: "macnodes", name: "mac-1", selector: "metadata.name=mac-1"},
		"its MacNode's status":               {verb: "update", group: rack, resource: "macnodes/status", name: "mac-1"},
		"its MacNode's status, patched":      {verb: "patch", group: rack, resource: "macnodes/status", name: "mac-1"},
		"another MacNode":                    {verb: "get", group: rack, resource: "macnodes", name: "mac-2", refused: "its own MacNode"},
		"another MacNode's status":           {verb: "patch", group: rack, resource: "macnodes/status", name: "mac-2", refused: "its own MacNode"},
		"all MacNodes":                       {verb: "list", group: rack, resource: "macnodes", refused: "metadata.name=mac-1"},
		"all MacNodes, watched":              {verb: "watch", group: rack, resource: "macnodes", refused: "metadata.name=mac-1"},
		"its MacNode's spec":                 {verb: "update", group: rack, resource: "macnodes", name: "mac-1", refused: "may only read"},
		"its MacNode's spec, patched":        {verb: "patch", group: rack, resource: "macnodes", name: "mac-1", refused: "may only read"},
		"its MacNode's status away":          {verb: "delete", group: rack, resource: "macnodes/status", name: "mac-1", refused: "may only read"},
		"its MacNode away":                   {verb: "delete", group: rack, resource: "macnodes", name: "mac-1", refused: "may only read"},
		"a new MacNode":                      {verb: "create", group: rack, resource: "macnodes", refused: "may only read"},
		"its instances":                      {verb: "list", group: inst, resource: "macosinstances", selector: "status.nodeName=mac-1"},
		"its instances, with more":           {verb: "watch", group: inst, resource: "macosinstances", selector: "status.phase=Running,status.nodeName=mac-1"},
		"its instances, in a namespace":      {verb: "watch", group: inst, resource: "macosinstances", namespace: "acme", selector: "status.nodeName=mac-1"},
		"another's instances":                {verb: "list", group: inst, resource: "macosinstances", selector: "status.nodeName=mac-2", refused: "status.nodeName=mac-1"},
		"instances that are not its own":     {verb: "list", group: inst, resource: "macosinstances", selector: "status.nodeName!=mac-1", refused: "status.nodeName=mac-1"},
		"all instances":                      {verb: "list", group: inst, resource: "macosinstances", refused: "status.nodeName=mac-1"},
		"an instance by a list of its name":  {verb: "list", group: inst, resource: "macosinstances", namespace: "acme", name: "other", selector: "metadata.name=other", refused: "status.nodeName=mac-1"},
		"an instance on it":                  {verb: "get", group: inst, resource: "macosinstances", namespace: "acme", name: "mine"},
		"an instance elsewhere":              {verb: "get", group: inst, resource: "macosinstances", namespace: "acme", name: "other", refused: "not on Mac"},
		"an instance that is not":            {verb: "get", group: inst, resource: "macosinstances", namespace: "acme", name: "none"},
		"status of an instance on it":        {verb: "update", group: inst, resource: "macosinstances/status", namespace: "acme", name: "mine"},
		"status of an instance elsewhere":    {verb: "patch", group: inst, resource: "macosinstances/status", namespace: "acme", name: "other", refused: "not on Mac"},
		"spec of an instance on it":          {verb: "update", group: inst, resource: "macosinstances", namespace: "acme", name: "mine", refused: "may only read"},
		"an instance on it away":             {verb: "delete", group: inst, resource: "macosinstances", namespace: "acme", name: "mine", refused: "may only read"},
		"all instances away":                 {verb: "deletecollection", group: inst, resource: "macosinstances", namespace: "acme", selector: "status.nodeName=mac-1", refused: "may only read"},
		"a new instance":                     {verb: "create", group: inst, resource: "macosinstances", namespace: "acme", refused: "may only read"},
		"an instance to stop":                {verb: "create", group: inst, resource: "macosinstances/stop", namespace: "acme", name: "mine", refused: "may only read"},
		"leases":                             {verb: "list", group: rack, resource: "macnodeleases", refused: "may only read"},
		"a lease":                            {verb: "get", group: rack, resource: "macnodeleases", namespace: "acme", name: "build", refused: "may only read"},
		"a binding":                          {verb: "create", group: rack, resource: "macnodeleases/binding", namespace: "acme", name: "build", refused: "may only read"},
		"a release":                          {verb: "create", group: rack, resource: "macnodeleases/release", namespace: "acme", name: "build", refused: "may only read"},
		"a report":                           {verb: "create", group: rack, resource: "auditrecords", namespace: "acme"},
		"records":                            {verb: "list", group: rack, resource: "auditrecords", refused: "may only read"},
		"usage":                              {verb: "list", group: rack, resource: "usagereports", namespace: "acme", refused: "may only read"},
		"compliance":                         {verb: "get", group: rack, resource: "compliancereports", name: "90d", refused: "may only read"},
		"images":                             {verb: "watch", group: image, resource: "macosimages"},
		"an image":                           {verb: "get", group: image, resource: "macosimages", name: "macos-26"},
		"an image's status":                  {verb: "update", group: image, resource: "macosimages/status", name: "macos-26", refused: "may only read"},
		"classes":                            {verb: "list", group: inst, resource: "instanceclasses"},
		"the configuration":                  {verb: "get", group: config, resource: "rackconfigs", name: "default"},
		"another configuration":              {verb: "update", group: config, resource: "rackconfigs", name: "default", refused: "may only read"},
		"an unknown subresource":             {verb: "get", group: rack, resource: "macnodes/proxy", name: "mac-1", refused: "may only read"},
		"an agent without a Node":            {user: impostor, verb: "get", group: rack, resource: "macnodes", name: "mac-1", refused: "is not the user of a Node"},
		"whoever is not in the group":        {user: tenant, verb: "list", group: rack, resource: "macnodes"},
		"a user whose name is only a prefix": {user: &user.DefaultInfo{Name: "system:node:", Groups: []string{"system:nodes"}}, verb: "get", group: image, resource: "macosimages", refused: "is not the user of a Node"},
		"an agent who is an administrator":   {user: &user.DefaultInfo{Name: "system:node:mac-1", Groups: []string{"system:masters", "system:nodes"}}, verb: "list", group: rack, resource: "macnodes", refused: "metadata.name"},
		"a resource of another group":        {verb: "get", group: "", resource: "macnodes", name: "mac-1", refused: "may only read"},
	} {
		t.Run(name, func(t *testing.T) {
			attributes := authorizer.AttributesRecord{
				User: tt.user, Verb: tt.verb, APIGroup: tt.group, APIVersion: "v1alpha1", Namespace: tt.namespace, Name: tt.name, ResourceRequest: true,
			}
			if tt.user == nil {
				attributes.User = agent
			}
			attributes.Resource, attributes.Subresource, _ = strings.Cut(tt.resource, "/")
			selector, err := fields.ParseSelector(tt.selector)
			assert.NoError(t, err)
			attributes.FieldSelectorRequirements = selector.Requirements()
			decision, reason, err := a.Authorize(t.Context(), attributes)
			assert.NoError(t, err)
			if tt.refused == "" {
				assert.Equal(t, authorizer.DecisionNoOpinion, decision, reason)
				return
			}
			assert.Equal(t, authorizer.DecisionDeny, decision)
			assert.Contains(t, reason, tt.refused)
		})
	}

	t.Run("a failed lookup is refused", func(t *testing.T) {
		decision, _, err := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: agent, Verb: "get", APIGroup: inst, Resource: "macosinstances", Namespace: "acme", Name: "broken", ResourceRequest: true,
		})
		assert.Equal(t, authorizer.DecisionDeny, decision)
		assert.Error(t, err)
	})
	t.Run("a selector that cannot be read selects nothing", func(t *testing.T) {
		decision, _, _ := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: agent, Verb: "list", APIGroup: inst, Resource: "macosinstances", ResourceRequest: true, FieldSelectorParsingErr: errors.New("bad"),
		})
		assert.Equal(t, authorizer.DecisionDeny, decision)
	})
	t.Run("discovery is not restricted", func(t *testing.T) {
		decision, _, _ := a.Authorize(t.Context(), authorizer.AttributesRecord{User: agent, Verb: "get", Path: "/apis"})
		assert.Equal(t, authorizer.DecisionNoOpinion, decision)
	})
}
