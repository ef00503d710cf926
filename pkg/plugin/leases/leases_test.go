package leases

import (
	"encoding/json"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/plugin/plugintest"
	"macrack.io/macrack/pkg/plugin/terminal"
)

func lease(namespace, name string, bound float64, change func(*rackv1alpha1.MacNodeLease)) *rackv1alpha1.MacNodeLease {
	l := &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: *plugintest.At(bound)},
		Spec:       rackv1alpha1.MacNodeLeaseSpec{ClassName: "base"},
		Status: rackv1alpha1.MacNodeLeaseStatus{
			Phase: rackv1alpha1.MacNodeLeaseBound, NodeName: "mac-1", SerialNumber: "S1", BoundAt: plugintest.At(bound), EarliestReleaseAt: plugintest.At(bound + 24),
		},
	}
	if change != nil {
		change(l)
	}
	return l
}

func objects() []runtime.Object {
	return []runtime.Object{
		lease("acme", "build", -12, nil),
		lease("acme", "expires", -12, func(l *rackv1alpha1.MacNodeLease) {
			l.Spec.ExpireAfter = scalar.NewDuration(36 * time.Hour)
		}),
		lease("acme", "held", -12, func(l *rackv1alpha1.MacNodeLease) {
			l.Status.Phase, l.Status.HeldAt = rackv1alpha1.MacNodeLeaseHeld, plugintest.At(-6)
		}),
		lease("acme", "past-its-floor", -30, nil),
		lease("acme", "pending", -0.05, func(l *rackv1alpha1.MacNodeLease) {
			l.Status = rackv1alpha1.MacNodeLeaseStatus{Phase: rackv1alpha1.MacNodeLeasePending, Conditions: []metav1.Condition{{
				Type: rackv1alpha1.MacNodeLeaseConditionReconciling, Status: metav1.ConditionTrue, Reason: rackv1alpha1.ReasonNoMacAvailable, Message: "all 3 Macs\x07 are leased",
			}}}
		}),
		lease("globex", "a-lease-with-a-very-long-name", -24*30, func(l *rackv1alpha1.MacNodeLease) {
			l.Spec.MinimumDuration = scalar.NewDuration(60 * 24 * time.Hour)
			l.Status.EarliestReleaseAt = plugintest.At(24 * 30)
		}),
	}
}

func TestTenant(t *testing.T) {
	plugintest.Golden(t, "tenant", plugintest.New(objects()...).Run(t, NewCommand), 80)
}

func TestAllNamespaces(t *testing.T) {
	plugintest.Golden(t, "all", plugintest.New(objects()...).Run(t, NewCommand, "-A"), 80)
}

func TestAllNamespacesOfATenant(t *testing.T) {
	f := plugintest.New(objects()[0])
	f.ForbidMacRack("list", "macnodeleases", metav1.NamespaceAll)
	out := f.Run(t, NewCommand, "-A")
	assert.Contains(t, out, "acme/build")
	assert.Contains(t, out, "Leases of other namespaces are not shown: you may not list macnodeleases in\nrack.macrack.io in all namespaces\n")
}

func TestNothingShown(t *testing.T) {
	assert.Equal(t, "No leases found.\n", plugintest.New().Run(t, NewCommand))
	f := plugintest.New(objects()...)
	f.ForbidMacRack("list", "macnodeleases", "*")
	assert.Equal(t, "Leases are not shown: you may not list macnodeleases in rack.macrack.io in\nnamespace acme\n", f.Run(t, NewCommand))
}

func TestJSON(t *testing.T) {
	var timeline Timeline
	require.NoError(t, json.Unmarshal([]byte(plugintest.New(objects()...).Run(t, NewCommand, "-o", "json")), &timeline))
	assert.Equal(t, "LeaseTimeline", timeline.Kind)
	assert.Equal(t, Lease{
		Namespace: "acme", Name: "expires", ClassName: "base", NodeName: "mac-1", SerialNumber: "S1", Phase: "Bound", Instances: []string{},
		CreatedAt: "2026-11-30T00:00:00Z", BoundAt: "2026-11-30T00:00:00Z", EarliestReleaseAt: "2026-12-01T00:00:00Z", ExpiresAt: "2026-12-01T12:00:00Z",
	}, timeline.Leases[1])
	assert.Equal(t, "NoMacAvailable", timeline.Leases[4].Reason)
}

// Every line fits in every terminal, at every time.
func TestEveryLineFits(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	at := func() time.Time {
		if random.Intn(3) == 0 {
			return time.Time{}
		}
		return plugintest.Now.Add(time.Duration(random.Intn(600)-300) * time.Hour)
	}
	texts := []string{"", "a", strings.Repeat("x", 200), "東京東京東京東京東京東京東京東京", "\x1b[31m", "a\nb"}
	for range 500 {
		timeline := &Timeline{}
		for range 1 + random.Intn(4) {
			timeline.Leases = append(timeline.Leases, Lease{
				Namespace: "acme", Name: strings.Repeat("n", random.Intn(63)) + texts[random.Intn(len(texts))], NodeName: texts[random.Intn(len(texts))], Message: texts[random.Intn(len(texts))],
				Phase: "Bound", bound: at(), floor: at(), held: at(), expires: at(), released: at(),
			})
		}
		width := 40 + random.Intn(100)
		for _, line := range draw(timeline, plugintest.Now, random.Intn(2) == 0, terminal.Style{Width: width}) {
			require.LessOrEqual(t, terminal.Width(line), width, line)
			require.Equal(t, terminal.Clean(line), line)
		}
	}
}
