package usage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
)

func use(leases, days int64, hours, held float64) rackv1alpha1.Usage {
	return rackv1alpha1.Usage{Leases: leases, BillableDays: days, ChassisTime: span(hours), HeldTime: span(held)}
}

func span(hours float64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(hours * float64(time.Hour))}
}

func report(namespace, name string, from float64, change func(*rackv1alpha1.UsageReportStatus)) *rackv1alpha1.UsageReport {
	r := &rackv1alpha1.UsageReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Status: rackv1alpha1.UsageReportStatus{
			From: *plugintest.At(from), To: *plugintest.At(0), AsOf: *plugintest.At(0),
			Total: use(1, 2, 30.5, 0), Running: use(1, 2, 30.5, 0),
			Classes: []rackv1alpha1.ClassUsage{{ClassName: "base", SKU: "mac-m4-24h", Total: use(1, 2, 30.5, 0), Running: use(1, 2, 30.5, 0)}},
			Leases: []rackv1alpha1.LeaseUsage{{
				Name: "build", ClassName: "base", SKU: "mac-m4-24h", SerialNumber: "C07DR00AQ6NV", BoundAt: *plugintest.At(-30.5),
				EarliestReleaseAt: *plugintest.At(-6.5), BillableDays: 2, ChassisTime: span(30.5), Records: []string{"acme/c07dr00aq6nv-000000000017"},
			}},
		},
	}
	if change != nil {
		change(&r.Status)
	}
	return r
}

// disputed has a held lease, and a lease without its first record, whose text is not to be trusted.
func disputed(s *rackv1alpha1.UsageReportStatus) {
	s.Total, s.Unproven, s.CoveredSince = use(4, 15, 356, 22.5), 1, plugintest.At(-500)
	s.Classes = append(s.Classes,
		rackv1alpha1.ClassUsage{ClassName: "max", SKU: "mac-m4-max-24h", Total: use(2, 12, 301.5, 22.5)},
		rackv1alpha1.ClassUsage{Total: use(1, 1, 24, 0)})
	s.Leases = append(s.Leases,
		rackv1alpha1.LeaseUsage{
			Name: "nightly-builds-of-the-release-branch", ClassName: "max", SerialNumber: "C07DR00AQ6NW", BoundAt: *plugintest.At(-300),
			DeletedAt: plugintest.At(-298.5), BillableUntil: plugintest.At(-276), ReleasedAt: plugintest.At(-275.9), BillableDays: 1, HeldTime: span(22.5),
		},
		rackv1alpha1.LeaseUsage{
			Name: "lost", SerialNumber: "C07DR00AQ6NX", BoundAt: *plugintest.At(-480), BillableUntil: plugintest.At(-456), BillableDays: 1,
			Unproven: "record 4 of chain C07DR00AQ6NX is missing\x1b[2J",
		})
}

func objects() []runtime.Object {
	return []runtime.Object{
		report("acme", "today", -12, nil), report("acme", "month", -708, disputed),
		report("globex", "month", -708, nil), report("globex", "7d", -168, nil),
	}
}

// fixture has a server that selects reports by name, as the real one does.
func fixture(t *testing.T, objects ...runtime.Object) *plugintest.Fixture {
	f := plugintest.New(objects...)
	f.MacRack.PrependReactor("list", "usagereports", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list := &rackv1alpha1.UsageReportList{}
		fields := action.(clienttesting.ListAction).GetListRestrictions().Fields
		for _, obj := range objects {
			r, ok := obj.(*rackv1alpha1.UsageReport)
			require.True(t, ok)
			name, selected := fields.RequiresExactMatch("metadata.name")
			if (!selected || name == r.Name) && (action.GetNamespace() == "" || action.GetNamespace() == r.Namespace) {
				list.Items = append(list.Items, *r)
			}
		}
		return true, list, nil
	})
	return f
}

func TestPictures(t *testing.T) {
	for name, args := range map[string][]string{
		"list": {}, "list-all": {"-A"}, "window": {"month"}, "leases": {"month", "--leases"},
		"window-all": {"month", "-A"}, "leases-all": {"month", "-A", "--leases"},
	} {
		t.Run(name, func(t *testing.T) {
			plugintest.Golden(t, name, fixture(t, objects()...).Run(t, NewCommand, args...), 80)
		})
	}
}

// The sum at the end of the table of all tenants is that of their reports.
func TestTotalOfAllTenants(t *testing.T) {
	out := fixture(t, objects()...).Run(t, NewCommand, "month", "-A")
	assert.Regexp(t, `total +5 +2 +17 +386h30m +22h30m\n`, out)
}

// The server limits the leases of a report, but not its sums.
func TestOmittedLeases(t *testing.T) {
	out := fixture(t, objects()...).Run(t, NewCommand, "month", "--leases")
	assert.Contains(t, out, "1 more leases are in the sums, but not in the reports.\n")
	assert.NotContains(t, fixture(t, report("acme", "7d", -168, nil)).Run(t, NewCommand, "7d", "--leases"), "more leases")
}

func TestData(t *testing.T) {
	assert.Contains(t, fixture(t, objects()...).Run(t, NewCommand, "-o", "json"), `"kind": "UsageReportList"`)
	one := fixture(t, objects()...).Run(t, NewCommand, "month", "-o", "yaml")
	assert.Contains(t, one, "kind: UsageReport\n")
	assert.Contains(t, one, "- acme/c07dr00aq6nv-000000000017\n")
	all := fixture(t, objects()...).Run(t, NewCommand, "month", "-A", "-o", "yaml")
	assert.Contains(t, all, "kind: UsageReportList\n")
	assert.Contains(t, all, "namespace: globex\n")
	assert.NotContains(t, all, "name: 7d\n", "only the window is listed")
}

func TestNoUse(t *testing.T) {
	assert.Equal(t, "No leases had a Mac in these windows.\n", fixture(t).Run(t, NewCommand, "-A"))
	f := fixture(t)
	require.NoError(t, f.MacRack.Tracker().Add(report("acme", "2026-10", 0, nil)))
	assert.Equal(t, "No leases had a Mac in 2026-10.\n", f.Run(t, NewCommand, "2026-10", "-A"))
}

func TestRefusals(t *testing.T) {
	const right = "usagereports in rack.macrack.io in namespace acme; ask an administrator for the right"
	f := fixture(t, objects()...)
	f.ForbidMacRack("*", "usagereports", "*")
	assert.EqualError(t, f.Try(t, NewCommand), "Usage reports are not shown: you may not list "+right)
	assert.EqualError(t, f.Try(t, NewCommand, "7d"), "Usage reports are not shown: you may not get "+right)
	assert.ErrorContains(t, f.Try(t, NewCommand, "-A"), "you may not list usagereports in rack.macrack.io in all namespaces;")
	for _, args := range [][]string{{"7x"}, {"7x", "-A"}} {
		assert.ErrorContains(t, fixture(t, objects()...).Try(t, NewCommand, args...), "not found", "the name is not a window")
	}
	assert.ErrorContains(t, fixture(t).Try(t, NewCommand, "--leases"), "--leases needs a window")
}
