// Package rejectionreport checks which clients may report a rejection, and completes the report
// from the server's own data. Agents report rejections by themselves or the kernel of their Mac,
// and macrack-controllers those by the scheduler. All other clients are refused, regardless of
// their permissions.
package rejectionreport

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/registry/requestuser"
)

// MacNode returns a MacNode. If it does not exist, [apierrors.IsNotFound] is true for the error.
type MacNode func(ctx context.Context, name string) (*rack.MacNode, error)

// perMinute is the maximum number of rejections reported per Mac and minute. Identical rejections
// are folded, so an honest agent needs only a few; a compromised one cannot fill the ledger.
const perMinute = 60

// New returns the admission plugin.
func New(macNode MacNode, clock clock.PassiveClock) admission.MutationInterface {
	return &plugin{Handler: admission.NewHandler(admission.Create), macNode: macNode, clock: clock, minutes: map[string]minute{}}
}

type plugin struct {
	*admission.Handler
	macNode MacNode
	clock   clock.PassiveClock

	mu      sync.Mutex
	minutes map[string]minute // by the name of the Mac
}

// A minute has its start and the number of rejections reported in it.
type minute struct {
	began time.Time
	used  int
}

// Admit refuses a report, or completes it.
func (p *plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	record, ok := a.GetObject().(*rack.AuditRecord)
	if !ok || a.GetResource().GroupResource() != rack.Resource("auditrecords") {
		return nil
	}
	if err := p.checkReporter(a, record); err != nil {
		return admission.NewForbidden(a, err)
	}
	mac, err := p.macNode(ctx, record.Chassis.NodeName)
	if apierrors.IsNotFound(err) {
		return admission.NewForbidden(a, fmt.Errorf("there is no MacNode %q to report a rejection of", record.Chassis.NodeName))
	}
	if err != nil {
		return err
	}
	if serial := record.Chassis.SerialNumber; serial != "" && serial != mac.Spec.SerialNumber {
		return admission.NewForbidden(a, fmt.Errorf("MacNode %q has serial number %s, not %s", mac.Name, mac.Spec.SerialNumber, serial))
	}
	if !a.IsDryRun() && !p.allow(mac.Name) {
		// Without retryAfterSeconds, because clients would wait for that time.
		return apierrors.NewTooManyRequests(fmt.Sprintf("%d rejections of Mac %q were reported within a minute; try again later", perMinute, mac.Name), 0)
	}
	record.Chassis.SerialNumber = mac.Spec.SerialNumber
	complete(record, mac, a.GetNamespace())
	if node, isAgent := requestuser.AgentOf(a.GetUserInfo()); isAgent {
		attribute(record, node, a.GetNamespace())
	}
	return nil
}

// checkReporter refuses reports for a layer other than the user's own, and reports of an agent
// about another Mac.
func (p *plugin) checkReporter(a admission.Attributes, record *rack.AuditRecord) error {
	var layers []rack.AuditLayer
	if node, isAgent := requestuser.AgentOf(a.GetUserInfo()); isAgent {
		if record.Chassis.NodeName == "" {
			record.Chassis.NodeName = node
		}
		if record.Chassis.NodeName != node {
			return fmt.Errorf("an agent reports what was refused on its own Mac %q, not on %q", node, record.Chassis.NodeName)
		}
		layers = []rack.AuditLayer{rack.LayerAgent, rack.LayerKernel}
	} else if a.GetUserInfo() != nil && a.GetUserInfo().GetName() == requestuser.Controllers {
		layers = []rack.AuditLayer{rack.LayerScheduler}
	}
	if len(layers) == 0 {
		return fmt.Errorf("the ledger is written by the server: only agents and macrack-controllers report rejections, those of their own layer")
	}
	if !slices.Contains(layers, record.Details.Layer) {
		return fmt.Errorf("%s reports rejections of the layers %q, not of %q", a.GetUserInfo().GetName(), layers, record.Details.Layer)
	}
	return nil
}

// allow counts a report about an existing Mac, and reports whether it is within the limit.
func (p *plugin) allow(mac string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, now := p.minutes[mac], p.clock.Now()
	if age := now.Sub(m.began); age < 0 || age >= time.Minute {
		m = minute{began: now}
	}
	if m.used >= perMinute {
		return false
	}
	m.used++
	p.minutes[mac] = m
	return true
}

// complete sets the tenant of the Mac, and thereby whether the request crossed tenants. The
// reporter's own data may be stale.
func complete(record *rack.AuditRecord, mac *rack.MacNode, namespace string) {
	if record.Type != rack.InstanceRejected && record.Type != rack.CrossTenantRejected {
		return // the registry refuses it
	}
	record.Lease, record.Type, record.Details.SourceNamespace = nil, rack.InstanceRejected, ""
	ref := mac.Status.LeaseRef
	if ref == nil {
		return
	}
	record.Lease = &rack.AuditReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
	if ref.Namespace != namespace {
		record.Type, record.Details.SourceNamespace = rack.CrossTenantRejected, namespace
	}
}

// attribute notes in a record that only the agent vouches for a cross-tenant request. A pod of any
// namespace may reach a Mac, so an agent must be able to report every namespace. But only the agent
// knows whether the pod existed, and a tenant may have compromised the agent.
func attribute(record *rack.AuditRecord, agent, namespace string) {
	if record.Lease == nil || record.Lease.Namespace != namespace {
		record.Details.Message = fmt.Sprintf("reported by the agent of Mac %s, and not known otherwise: %s", agent, record.Details.Message)
	}
}
