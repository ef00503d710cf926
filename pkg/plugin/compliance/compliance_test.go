package compliance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

func report(name string, hours float64, change func(*rackv1alpha1.ComplianceReportStatus)) *rackv1alpha1.ComplianceReport {
	r := &rackv1alpha1.ComplianceReport{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: rackv1alpha1.ComplianceReportStatus{
			Verdict: rackv1alpha1.ComplianceCompliant, From: *plugintest.At(-hours), To: *plugintest.At(0),
			Records: 1200, Chassis: 40, Leases: 52, VMStarts: 310, MaxVMs: 2, Rejected: 3, OtherRejections: 1,
		},
	}
	if change != nil {
		change(&r.Status)
	}
	return r
}

func violated(s *rackv1alpha1.ComplianceReportStatus) {
	s.Verdict, s.FloorBreaches = rackv1alpha1.ComplianceViolated, 1
	s.CoveredSince = plugintest.At(-100)
	s.Violations = []rackv1alpha1.ComplianceViolation{{
		Rule: "TwentyFourHours", SerialNumber: "C07DR00AQ6NV", Time: metav1.NewMicroTime(plugintest.At(-3).Time),
		Message: "lease acme/build released the Mac 4h0m0s before its floor at 2026-11-30T13:00:00Z\x1b[2J",
		Records: []string{"acme/c07dr00aq6nv-0000000017", "acme/c07dr00aq6nv-0000000019"},
	}}
}

func objects() []runtime.Object {
	return []runtime.Object{report("24h", 24, nil), report("30d", 720, violated), report("7d", 168, func(s *rackv1alpha1.ComplianceReportStatus) {
		s.Verdict, s.BrokenChains = rackv1alpha1.ComplianceIncomplete, 2
	})}
}

func TestList(t *testing.T) {
	plugintest.Golden(t, "list", plugintest.New(objects()...).Run(t, NewCommand), 80)
}

func TestReport(t *testing.T) {
	for _, name := range []string{"24h", "30d", "7d"} {
		plugintest.Golden(t, name, plugintest.New(objects()...).Run(t, NewCommand, name), 80)
	}
}

func TestData(t *testing.T) {
	assert.Contains(t, plugintest.New(objects()...).Run(t, NewCommand, "-o", "json"), `"kind": "ComplianceReportList"`)
	assert.Contains(t, plugintest.New(objects()...).Run(t, NewCommand, "30d", "-o", "yaml"), "kind: ComplianceReport\n")
}

func TestRefusals(t *testing.T) {
	f := plugintest.New(objects()...)
	f.ForbidMacRack("*", "compliancereports", "*")
	assert.EqualError(t, f.Try(t, NewCommand),
		"Compliance reports are not shown: you may not list compliancereports in rack.macrack.io; ask an administrator for the right")
	assert.ErrorContains(t, f.Try(t, NewCommand, "7d"), "you may not get compliancereports")
	assert.ErrorContains(t, plugintest.New().Try(t, NewCommand, "7x"), "not found")
}
