package rack

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/plugintest"
	"macrack.io/macrack/pkg/plugin/terminal"
)

func mac(name, rack, shelf string, status rackv1alpha1.MacNodeStatus) *rackv1alpha1.MacNode {
	return &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: rackv1alpha1.MacNodeSpec{
			SerialNumber: "S-" + name, ClassName: "base", Location: rackv1alpha1.MacNodeLocation{Site: "fra1", Rack: rack, Shelf: shelf},
		},
		Status: status,
	}
}

func leasedBy(namespace, name string, hours float64, phase rackv1alpha1.MacNodePhase) rackv1alpha1.MacNodeStatus {
	return rackv1alpha1.MacNodeStatus{
		Phase: phase, LeaseRef: &rackv1alpha1.LeaseReference{Namespace: namespace, Name: name, UID: types.UID(name), NamespaceUID: types.UID("namespace-" + namespace)},
		EarliestReleaseAt: plugintest.At(hours), RunningVMs: 1,
	}
}

func lease(namespace, name, node string, hours float64, phase rackv1alpha1.MacNodeLeasePhase, instances ...string) *rackv1alpha1.MacNodeLease {
	l := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: *plugintest.At(-2)},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
		Status:     rackv1alpha1.MacNodeLeaseStatus{Phase: phase},
	}
	if node != "" {
		l.Status.NodeName, l.Status.SerialNumber = node, "S-"+node
		l.Status.BoundAt, l.Status.EarliestReleaseAt = plugintest.At(hours-24), plugintest.At(hours)
	}
	for _, i := range instances {
		l.Status.Instances = append(l.Status.Instances, rackv1alpha1.LeaseSlot{Name: i})
	}
	return l
}

func pending(namespace, name, reason string) *rackv1alpha1.MacNodeLease {
	l := lease(namespace, name, "", 0, rackv1alpha1.MacNodeLeasePending)
	l.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeLeaseConditionBound, Status: metav1.ConditionFalse, Reason: reason}}
	return l
}

func objects() []runtime.Object {
	return []runtime.Object{
		mac("mac-1", "r1", "1", leasedBy("acme", "build", 23, rackv1alpha1.MacNodeLeased)),
		mac("mac-2", "r1", "1", rackv1alpha1.MacNodeStatus{Phase: rackv1alpha1.MacNodeAvailable}),
		mac("mac-3", "r1", "2", leasedBy("acme", "old", 3, rackv1alpha1.MacNodeLeased)),
		mac("mac-4", "r1", "10", leasedBy("globex", "ci", -1, rackv1alpha1.MacNodeQuarantined)),
		mac("mac-5", "東京ラック", "1\x1b[31m", rackv1alpha1.MacNodeStatus{}),
		lease("acme", "build", "mac-1", 23, rackv1alpha1.MacNodeLeaseBound, "one", "an-instance-with-a-long-name"),
		lease("acme", "old", "mac-3", 3, rackv1alpha1.MacNodeLeaseHeld),
		lease("globex", "ci", "mac-4", -1, rackv1alpha1.MacNodeLeaseBound, "job-17"),
		pending("acme", "more", rackv1alpha1.ReasonNoMacAvailable),
	}
}

func TestOperator(t *testing.T) {
	plugintest.Golden(t, "operator", plugintest.New(objects()...).Run(t, NewCommand), 80)
}

func TestOperatorInAWideTerminal(t *testing.T) {
	f := plugintest.New(objects()...)
	f.Vars["COLUMNS"] = "130"
	plugintest.Golden(t, "operator-wide", f.Run(t, NewCommand), 130)
}

func TestOneTenantOfAnOperator(t *testing.T) {
	f := plugintest.New(objects()...)
	f.Clients.Namespace, f.Clients.Explicit = "globex", true
	plugintest.Golden(t, "operator-globex", f.Run(t, NewCommand), 80)
}

// A user who may list Macs but no leases sees the tenants, and which slots are in use.
func TestReaderOfMacs(t *testing.T) {
	f := plugintest.New(objects()...)
	f.ForbidMacRack("list", "macnodeleases", "*")
	plugintest.Golden(t, "macs-only", f.Run(t, NewCommand), 80)
}

func tenant(objects ...runtime.Object) *plugintest.Fixture {
	f := plugintest.New(objects...)
	f.ForbidMacRack("list", "macnodes", "*")
	f.ForbidMacRack("list", "macnodeleases", metav1.NamespaceAll)
	return f
}

func TestTenant(t *testing.T) {
	plugintest.Golden(t, "tenant", tenant(objects()...).Run(t, NewCommand), 80)
}

func TestTenantWithoutALease(t *testing.T) {
	assert.Equal(t, "0 Macs\n\nMacs are not shown: you may not list macnodes in rack.macrack.io\n"+
		"Leases of other namespaces are not shown: you may not list macnodeleases in\nrack.macrack.io in all namespaces\n", tenant().Run(t, NewCommand))
}

func TestTenantWithAnUnhealthyMac(t *testing.T) {
	for reason, phase := range map[string]string{"Offline": "Offline", "KernelQuotaStuck": "Quarantined"} {
		l := lease("acme", "build", "mac-1", 23, rackv1alpha1.MacNodeLeaseBound)
		l.Status.Conditions = []metav1.Condition{{Type: rackv1alpha1.MacNodeLeaseConditionMacReady, Status: metav1.ConditionFalse, Reason: reason}}
		assert.Contains(t, tenant(l).Run(t, NewCommand), phase)
	}
}

func TestJSON(t *testing.T) {
	var p Picture
	require.NoError(t, json.Unmarshal([]byte(plugintest.New(objects()...).Run(t, NewCommand, "-o", "json")), &p))
	assert.Equal(t, "RackPicture", p.Kind)
	assert.Equal(t, Mac{
		Name: "mac-1", SerialNumber: "S-mac-1", ClassName: "base", Site: "fra1", Rack: "r1", Shelf: "1", Phase: "Leased",
		Tenant: "acme", Lease: "build", Slots: []string{"one", "an-instance-with-a-long-name"}, EarliestReleaseAt: "2026-12-01T11:00:00Z",
	}, p.Macs[0])
	assert.Equal(t, "1\x1b[31m", p.Macs[4].Shelf, "data is not escaped for people")
	assert.Equal(t, []Pending{{Namespace: "acme", Name: "more", ClassName: "base", Since: "2026-11-30T10:00:00Z", Reason: "NoMacAvailable"}}, p.Pending)
	assert.ErrorContains(t, plugintest.New().Try(t, NewCommand, "-o", "table"), "use json or yaml")
	assert.ErrorContains(t, plugintest.New().Try(t, NewCommand, "-o", "json", "-w"), "--watch")
}

// Every line fits in every terminal, whatever users have typed.
func TestEveryLineFits(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	texts := []string{"", "1", strings.Repeat("x", 63), "東京東京東京東京東京東京", "e\u0301\u0301", "\x1b]0;title\a", "a\nb"}
	pick := func() string { return texts[random.Intn(len(texts))] }
	for n := range 200 {
		p := &Picture{}
		for range 1 + random.Intn(5) {
			p.Macs = append(p.Macs, Mac{
				Name: pick(), ClassName: pick(), Site: pick(), Rack: pick(), Shelf: pick(), Phase: pick(), Tenant: pick(), Lease: pick(),
				Slots: []string{pick(), pick()}, floor: plugintest.At(float64(random.Intn(100000) - 50)).Time,
			})
		}
		p.Pending = []Pending{{Namespace: pick(), Name: pick(), ClassName: pick(), Reason: pick()}}
		width := 40 + random.Intn(100)
		for _, line := range draw(p, plugintest.Now, terminal.Style{Width: width}) {
			require.LessOrEqual(t, terminal.Width(line), width, fmt.Sprintf("%d: %s", n, line))
			require.Equal(t, terminal.Clean(line), line)
		}
	}
}
