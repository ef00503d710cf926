package rejectionreport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/requestuser"
)

var (
	agent       = &user.DefaultInfo{Name: "system:node:mac-1", Groups: []string{"system:nodes"}}
	controllers = &user.DefaultInfo{Name: requestuser.Controllers, Groups: []string{"system:serviceaccounts"}}
)

// macs has mac-1, which acme has leased, and mac-2, which is unleased.
func macs(_ context.Context, name string) (*rack.MacNode, error) {
	node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rack.MacNodeSpec{SerialNumber: "SERIAL-" + name}}
	switch name {
	case "mac-1":
		node.Status.LeaseRef = &rack.LeaseReference{Namespace: "acme", Name: "build", UID: "u1"}
		return node, nil
	case "mac-2":
		return node, nil
	case "mac-0":
		return nil, errors.New("etcd is away")
	}
	return nil, apierrors.NewNotFound(rack.Resource("macnodes"), name)
}

func report(layer rack.AuditLayer, node string) *rack.AuditRecord {
	return &rack.AuditRecord{Type: rack.InstanceRejected, Chassis: rack.AuditChassis{NodeName: node}, Details: rack.AuditDetails{Layer: layer, Reason: "ForeignPod"}}
}

func admit(t *testing.T, who user.Info, namespace string, record *rack.AuditRecord) error {
	a := admission.NewAttributesRecord(record, nil, schema.GroupVersionKind{}, namespace, "", rack.Resource("auditrecords").WithVersion("v1alpha1"), "", admission.Create, nil, false, who)
	return New(macs, clock.RealClock{}).Admit(t.Context(), a, nil)
}

func TestWhoReports(t *testing.T) {
	for name, tt := range map[string]struct {
		user    user.Info
		record  *rack.AuditRecord
		refused string
	}{
		"an agent":                      {agent, report(rack.LayerAgent, "mac-1"), ""},
		"an agent, of its kernel":       {agent, report(rack.LayerKernel, "mac-1"), ""},
		"an agent, of the scheduler":    {agent, report(rack.LayerScheduler, "mac-1"), `not of "Scheduler"`},
		"an agent, of the registry":     {agent, report(rack.LayerRegistry, "mac-1"), `not of "Registry"`},
		"an agent, of no layer":         {agent, report("", "mac-1"), `not of ""`},
		"an agent, of another Mac":      {agent, report(rack.LayerAgent, "mac-2"), `its own Mac "mac-1"`},
		"an agent without a Mac":        {&user.DefaultInfo{Name: "system:node:mac-9", Groups: []string{"system:nodes"}}, report(rack.LayerAgent, ""), `no MacNode "mac-9"`},
		"an agent that is no Node's":    {&user.DefaultInfo{Name: "mac-1", Groups: []string{"system:nodes"}}, report(rack.LayerAgent, "mac-1"), `its own Mac ""`},
		"the controllers":               {controllers, report(rack.LayerScheduler, "mac-1"), ""},
		"the controllers, of the agent": {controllers, report(rack.LayerAgent, "mac-1"), `not of "Agent"`},
		"an administrator":              {&user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}, report(rack.LayerAgent, "mac-1"), "written by the server"},
		"a tenant":                      {&user.DefaultInfo{Name: "acme"}, report(rack.LayerScheduler, "mac-1"), "written by the server"},
		"a user named like an agent":    {&user.DefaultInfo{Name: "system:node:mac-1"}, report(rack.LayerAgent, "mac-1"), "written by the server"},
		"no user":                       {nil, report(rack.LayerAgent, "mac-1"), "written by the server"},
	} {
		t.Run(name, func(t *testing.T) {
			err := admit(t, tt.user, "acme", tt.record)
			if tt.refused == "" {
				assert.NoError(t, err)
				return
			}
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
			assert.ErrorContains(t, err, tt.refused)
		})
	}
	assert.ErrorContains(t, admit(t, controllers, "acme", report(rack.LayerScheduler, "mac-0")), "etcd is away")
}

func TestServerCorrectsReport(t *testing.T) {
	lease := &rack.AuditReference{Namespace: "acme", Name: "build", UID: "u1"}
	forged := &rack.AuditReference{Namespace: "globex", Name: "theirs", UID: "u9"}

	t.Run("the chassis", func(t *testing.T) {
		record := report(rack.LayerAgent, "")
		assert.NoError(t, admit(t, agent, "acme", record))
		assert.Equal(t, rack.AuditChassis{NodeName: "mac-1", SerialNumber: "SERIAL-mac-1"}, record.Chassis)
		record.Chassis.SerialNumber = "SERIAL-mac-2"
		assert.ErrorContains(t, admit(t, agent, "acme", record), `has serial number SERIAL-mac-1, not SERIAL-mac-2`)
	})
	t.Run("the tenant's own", func(t *testing.T) {
		record := report(rack.LayerAgent, "mac-1")
		record.Type, record.Lease, record.Details.SourceNamespace = rack.CrossTenantRejected, forged, "acme"
		assert.NoError(t, admit(t, agent, "acme", record))
		assert.Equal(t, rack.InstanceRejected, record.Type)
		assert.Equal(t, lease, record.Lease)
		assert.Empty(t, record.Details.SourceNamespace)
	})
	t.Run("another tenant's", func(t *testing.T) {
		record := report(rack.LayerAgent, "mac-1")
		record.Lease = forged
		assert.NoError(t, admit(t, agent, "globex", record))
		assert.Equal(t, rack.CrossTenantRejected, record.Type)
		assert.Equal(t, lease, record.Lease)
		assert.Equal(t, "globex", record.Details.SourceNamespace)
	})
	t.Run("an unleased Mac", func(t *testing.T) {
		record := report(rack.LayerScheduler, "mac-2")
		record.Type, record.Lease, record.Details.SourceNamespace = rack.CrossTenantRejected, forged, "acme"
		assert.NoError(t, admit(t, controllers, "acme", record))
		assert.Equal(t, rack.InstanceRejected, record.Type)
		assert.Nil(t, record.Lease)
		assert.Empty(t, record.Details.SourceNamespace)
	})
	t.Run("no rejection at all", func(t *testing.T) {
		record := report(rack.LayerAgent, "mac-1")
		record.Type = rack.LeaseReleased
		assert.NoError(t, admit(t, agent, "acme", record))
		assert.Equal(t, rack.LeaseReleased, record.Type, "left for the registry to refuse")
	})
}

// An agent that reports false rejections cannot fill the ledger, nor suppress the reports of
// another.
func TestLimit(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	plugin := New(macs, now)
	send := func(who user.Info, node string, dryRun bool) error {
		a := admission.NewAttributesRecord(report(rack.LayerAgent, node), nil, schema.GroupVersionKind{}, "acme", "", rack.Resource("auditrecords").WithVersion("v1alpha1"), "", admission.Create, nil, dryRun, who)
		return plugin.Admit(t.Context(), a, nil)
	}
	for range perMinute {
		assert.NoError(t, send(agent, "mac-1", false))
	}
	assert.True(t, apierrors.IsTooManyRequests(send(agent, "mac-1", false)))
	assert.NoError(t, send(agent, "mac-1", true), "a dry run records nothing")
	other := &user.DefaultInfo{Name: "system:node:mac-2", Groups: []string{"system:nodes"}}
	assert.NoError(t, send(other, "mac-2", false))
	now.SetTime(now.Now().Add(time.Minute - time.Nanosecond))
	assert.True(t, apierrors.IsTooManyRequests(send(agent, "mac-1", false)))
	now.SetTime(now.Now().Add(time.Nanosecond))
	assert.NoError(t, send(agent, "mac-1", false))
	now.SetTime(now.Now().Add(-time.Hour))
	assert.NoError(t, send(agent, "mac-1", false), "a clock that was set back refuses no agent")
}

// TestUnverifiedReport checks that a report about a namespace without the Mac is attributed
// to the agent.
func TestUnverifiedReport(t *testing.T) {
	const attributed = "reported by the agent of Mac mac-1, and not known otherwise: a pod"
	unleased := &user.DefaultInfo{Name: "system:node:mac-2", Groups: []string{"system:nodes"}}
	for name, tt := range map[string]struct {
		user      user.Info
		layer     rack.AuditLayer
		node      string
		namespace string
		message   string
	}{
		"of the Mac's tenant":                    {agent, rack.LayerAgent, "mac-1", "acme", "a pod"},
		"of another namespace":                   {agent, rack.LayerAgent, "mac-1", "globex", attributed},
		"of another namespace, the kernel":       {agent, rack.LayerKernel, "mac-1", "globex", attributed},
		"of any namespace, from an unleased Mac": {unleased, rack.LayerAgent, "mac-2", "acme", "reported by the agent of Mac mac-2, and not known otherwise: a pod"},
		"the controllers":                        {controllers, rack.LayerScheduler, "mac-1", "globex", "a pod"},
	} {
		record := report(tt.layer, tt.node)
		record.Details.Message = "a pod"
		assert.NoError(t, admit(t, tt.user, tt.namespace, record), name)
		assert.Equal(t, tt.message, record.Details.Message, name)
	}
}
