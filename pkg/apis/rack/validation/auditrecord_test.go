package validation

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/rack"
)

func validRecord() *rack.AuditRecord {
	return &rack.AuditRecord{
		ObjectMeta: metav1.ObjectMeta{Name: "r1", Namespace: "acme"},
		Type:       rack.InstanceRejected,
		Chassis:    rack.AuditChassis{NodeName: "mac-a1", SerialNumber: "C07DR00AQ6NV"},
		Tenant:     "acme",
		Lease:      &rack.AuditReference{Namespace: "acme", Name: "ci", UID: "u1"},
		Instance:   &rack.AuditReference{Namespace: "acme", Name: "vm1"},
		Details:    rack.AuditDetails{Layer: rack.LayerAgent, Reason: "ThirdVM", Message: "both slots are taken"},
	}
}

func TestValidateAuditRecord(t *testing.T) {
	tests := map[string]struct {
		change func(*rack.AuditRecord)
		want   []string
	}{
		"valid":              {func(*rack.AuditRecord) {}, nil},
		"kernel":             {func(r *rack.AuditRecord) { r.Details.Layer = rack.LayerKernel }, nil},
		"cross tenant":       {func(r *rack.AuditRecord) { r.Type, r.Details.SourceNamespace = rack.CrossTenantRejected, "globex" }, nil},
		"no references":      {func(r *rack.AuditRecord) { r.Lease, r.Instance, r.Chassis.SerialNumber = nil, nil, "" }, nil},
		"made-up instance":   {func(r *rack.AuditRecord) { r.Instance = &rack.AuditReference{Namespace: "acme", Name: "Not_a.name"} }, nil},
		"no instance's name": {func(r *rack.AuditRecord) { r.Instance = &rack.AuditReference{Namespace: "acme"} }, nil},
		"no name yet":        {func(r *rack.AuditRecord) { r.Name = "" }, nil},
		"no namespace":       {func(r *rack.AuditRecord) { r.Namespace, r.Tenant = "", "" }, []string{"metadata.namespace: Required"}},
		"a change":           {func(r *rack.AuditRecord) { r.Type = rack.LeaseReleased }, []string{"type: Unsupported"}},
		"tampering":          {func(r *rack.AuditRecord) { r.Type = rack.FloorTamperRejected }, []string{"type: Unsupported"}},
		"registry":           {func(r *rack.AuditRecord) { r.Details.Layer = rack.LayerRegistry }, []string{"details.layer: Unsupported"}},
		"no layer":           {func(r *rack.AuditRecord) { r.Details.Layer = "" }, []string{"details.layer: Unsupported"}},
		"no Mac":             {func(r *rack.AuditRecord) { r.Chassis.NodeName = "" }, []string{"chassis.nodeName: Required"}},
		"another's":          {func(r *rack.AuditRecord) { r.Tenant = "globex" }, []string{"tenant: Invalid"}},
		"no reason":          {func(r *rack.AuditRecord) { r.Details.Reason = "" }, []string{"details.reason: Required"}},
		"prose for a reason": {func(r *rack.AuditRecord) { r.Details.Reason = "a third VM" }, []string{"details.reason: Invalid"}},
		"long reason":        {func(r *rack.AuditRecord) { r.Details.Reason = strings.Repeat("a", 257) }, []string{"details.reason: Too long"}},
		"long message":       {func(r *rack.AuditRecord) { r.Details.Message = strings.Repeat("a", 4097) }, []string{"details.message: Too long"}},
		"no source":          {func(r *rack.AuditRecord) { r.Type = rack.CrossTenantRejected }, []string{"details.sourceNamespace: Required"}},
		"source":             {func(r *rack.AuditRecord) { r.Details.SourceNamespace = "a/b" }, []string{"details.sourceNamespace: Invalid"}},
		"lease":              {func(r *rack.AuditRecord) { r.Lease.Name = strings.Repeat("a", 254) }, []string{"lease.name: Too long"}},
		"count of VMs":       {func(r *rack.AuditRecord) { r.Details.LocalVMs = ptr.To(int32(1)) }, []string{"details.localVMs: Forbidden"}},
		"times":              {func(r *rack.AuditRecord) { r.Details.BoundAt, r.Details.ReleasedAt = &now, &now }, []string{"details.boundAt: Forbidden", "details.releasedAt: Forbidden"}},
		"identity":           {func(r *rack.AuditRecord) { r.Details.MACAddress = "x" }, []string{"details.macAddress: Forbidden"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			record := validRecord()
			tt.change(record)
			checktest.Errors(t, tt.want, ValidateAuditRecord(record))
		})
	}
}
