package evidence

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
)

var start = time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)

// A book is a ledger in memory.
type book struct {
	t       *testing.T
	clock   *testingclock.FakePassiveClock
	keys    map[string][]byte
	records []*rack.AuditRecord
}

func (b *book) GetKey(_ context.Context, kind, id string) ([]byte, bool, error) {
	value, ok := b.keys[kind+"/"+id]
	return value, ok, nil
}

func (b *book) PutKey(kind, id string, value []byte) error {
	b.keys[kind+"/"+id] = value
	return nil
}

func (b *book) Create(_ context.Context, _ schema.GroupResource, obj runtime.Object) error {
	b.records = append(b.records, obj.DeepCopyObject().(*rack.AuditRecord))
	return nil
}

func (b *book) at(hours float64) {
	b.clock.SetTime(start.Add(time.Duration(hours * float64(time.Hour))))
}

func (b *book) add(record *rack.AuditRecord) {
	require.NoError(b.t, ledger.Append(context.Background(), b, b.clock, record))
}

func (b *book) bind(tenant, name, mac string) *rack.MacNodeLease {
	at, floor := metav1.NewTime(b.clock.Now()), metav1.NewTime(b.clock.Now().Add(24*time.Hour))
	lease := &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name, UID: types.UID(tenant + name)}, Spec: rack.MacNodeLeaseSpec{ClassName: "base"}}
	lease.Status = rack.MacNodeLeaseStatus{BoundAt: &at, EarliestReleaseAt: &floor, NodeName: "mac-" + mac, SerialNumber: "C07" + mac}
	b.add(ledger.NewLeaseBound(lease, &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-" + mac}, Spec: rack.MacNodeSpec{SerialNumber: "C07" + mac}}))
	return lease
}

func vm(lease *rack.MacNodeLease, name string) *instance.MacOSInstance {
	return &instance.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: name, UID: types.UID(lease.Namespace + name)},
		Spec:       instance.MacOSInstanceSpec{LeaseName: lease.Name},
		Status:     instance.MacOSInstanceStatus{NodeName: lease.Status.NodeName, SerialNumber: lease.Status.SerialNumber, StartedAt: &metav1.Time{}},
	}
}

// newBook has an honest fortnight of three Macs.
func newBook(t *testing.T) *book {
	b := &book{t: t, clock: testingclock.NewFakePassiveClock(start), keys: map[string][]byte{}}
	build, lab := b.bind("acme", "build", "A1"), b.bind("globex", "lab", "A2")
	b.add(ledger.NewInstanceStarted(vm(build, "one"), build, 1))
	b.at(1)
	b.add(ledger.NewInstanceStarted(vm(build, "two"), build, 2))
	refused := ledger.NewInstanceRejected(vm(build, "three"), build, rack.LayerRegistry, "NoFreeSlot", "rule 1 (two VMs per Mac): lease \"build\" has 2 of 2 instances")
	refused.Details.Count = 41
	b.add(refused)
	b.at(5)
	b.add(ledger.NewInstanceStopped(vm(build, "one"), build, 1))
	b.add(ledger.NewInstanceStopped(vm(build, "two"), build, 0))
	b.at(6)
	b.add(ledger.NewLeaseHeld(build, b.clock.Now()))
	b.at(24.5)
	b.add(ledger.NewLeaseReleased(build, b.clock.Now(), nil))
	for day := 2; day < 12; day += 3 {
		b.at(float64(day) * 24)
		nightly := b.bind([]string{"initech", "acme"}[day%2], "nightly", "A1")
		for i := range 8 {
			b.at(float64(day*24 + i*5))
			b.add(ledger.NewInstanceStarted(vm(nightly, "job"), nightly, 1))
			b.at(float64(day*24+i*5) + 4)
			b.add(ledger.NewInstanceStopped(vm(nightly, "job"), nightly, 0))
		}
		b.at(float64(day)*24 + 50)
		b.add(ledger.NewLeaseReleased(nightly, b.clock.Now(), nil))
	}
	b.at(250)
	b.add(ledger.NewInstanceStarted(vm(lab, "long"), lab, 1))
	b.add(ledger.NewNodeQuarantined(&rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-A3"}, Spec: rack.MacNodeSpec{SerialNumber: "C07A3"},
		Status: rack.MacNodeStatus{Quarantine: &rack.Quarantine{Reason: "KernelQuotaStuck", Message: "a reboot is needed"}}}))
	b.at(14 * 24)
	return b
}

// evidence returns the evidence on everything in the book.
func (b *book) evidence() *Evidence {
	records := slices.Clone(b.records)
	slices.SortFunc(records, func(x, y *rack.AuditRecord) int { return cmp.Compare(x.Name, y.Name) })
	now := b.clock.Now()
	window, err := ledger.ParseWindow("2026-11-01..2026-11-20", now)
	require.NoError(b.t, err)
	findings, err := ledger.Find(b.t.Context(), ledger.Records(records...), nil, window)
	require.NoError(b.t, err)
	e := &Evidence{
		File: "ledger.jsonl", SHA256: strings.Repeat("ab", 32), Window: window, MadeAt: now, Version: "test",
		Report: findings.Reports[0], Leases: findings.Leases, Heads: ledger.NewHeads(now), History: NewHistory(window, findings.Reports[0]),
	}
	for _, record := range records {
		e.Heads.Add(record)
		e.History.Add(record)
	}
	return e
}

// render returns the page, which must be complete without a network.
func render(t *testing.T, e *Evidence) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, e.Write(&out))
	if dir := os.Getenv("EVIDENCE_PAGES"); dir != "" {
		require.NoError(t, os.WriteFile(dir+"/"+strings.ReplaceAll(t.Name(), "/", "-")+".html", out.Bytes(), 0o644))
	}
	document, err := html.Parse(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	for node := range document.Descendants() {
		assert.NotContains(t, []string{"script", "img", "link", "iframe", "object", "embed", "form"}, node.Data)
		for _, a := range node.Attr {
			assert.False(t, strings.HasPrefix(a.Key, "on"), a.Key)
			if a.Key == "href" || a.Key == "src" {
				assert.True(t, strings.HasPrefix(a.Val, "#"), a.Val)
			}
		}
	}
	return out.String()
}

func TestEvidenceOfAnHonestFleet(t *testing.T) {
	b := newBook(t)
	page := render(t, b.evidence())
	for _, want := range []string{
		"Compliant", "No heads of an earlier audit were given", "ledger.jsonl", strings.Repeat("ab", 32), "<p>None.</p>",
		"requests refused for a rule: 41", "at most 2 VMs ran at once on a Mac", "broken chains: 0 of 3",
		"acme/build, base", "<td>1, 7, 8</td>", "2026-11-02 15:00:00", "Timeline of the Mac C07A1: leases: 5, virtual machines: 34, refused requests: 41, violations: 0",
		`class="held"`, "C07A3", `class="quarantine"`, "KernelQuotaStuck: a reboot is needed",
	} {
		assert.Contains(t, page, want)
	}
	for _, record := range b.records[len(b.records)-2:] {
		assert.Contains(t, page, record.Hash, "the head of a chain")
	}
	assert.NotContains(t, page, "✕")

	e := b.evidence()
	e.Expected = ledger.NewHeads(start)
	assert.Contains(t, render(t, e), "The records continue the heads of 0 chains, written 2026-11-02 09:00:00")
}

// A violation of each rule is visible at a glance, in the verdict, in the table of rules, in a
// section with its records, and on the timeline.
func TestEvidenceOfViolations(t *testing.T) {
	for name, test := range map[string]struct {
		spoil         func(b *book)
		verdict, rule string
		records       []string
		drawn         string
	}{
		"three VMs": {func(b *book) {
			b.at(300)
			lease := b.bind("acme", "crowd", "A4")
			for i, name := range []string{"first", "second", "third"} {
				b.at(301 + float64(i))
				b.add(ledger.NewInstanceStarted(vm(lease, name), lease, int32(i+1)))
			}
			b.at(336)
		}, "Violated", "Rule 1: two VMs per Mac", []string{"acme/c07a4-000000000002", "acme/c07a4-000000000003", "acme/c07a4-000000000004"}, `<rect class="vm over"`},
		"two tenants": {func(b *book) {
			b.at(310)
			b.bind("acme", "intruder", "A2")
			b.at(336)
		}, "Violated", "Rule 2: one tenant per Mac", []string{"globex/c07a2-000000000001", "acme/c07a2-000000000003"}, "acme/intruder"},
		"an early release": {func(b *book) {
			b.at(312)
			lease := b.bind("initech", "short", "A5")
			b.at(320)
			b.add(ledger.NewLeaseReleased(lease, b.clock.Now(), nil))
			b.at(336)
		}, "Violated", "Rule 3: at least 24 hours", []string{"initech/c07a5-000000000001", "initech/c07a5-000000000002"}, "initech/short"},
		"a missing record": {func(b *book) {
			b.records = slices.DeleteFunc(b.records, func(r *rack.AuditRecord) bool { return r.Name == "c07a1-000000000005" })
		}, "Incomplete", "Unbroken ledger", []string{"acme/c07a1-000000000004", "acme/c07a1-000000000006"}, "not proven: records of its Mac are missing"},
		"an edited record": {func(b *book) {
			for _, r := range b.records {
				if r.Name == "c07a2-000000000002" {
					r.Details.MachineID = "edited"
				}
			}
		}, "Incomplete", "Unbroken ledger", []string{"globex/c07a2-000000000002"}, "was edited"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(t)
			test.spoil(b)
			e := b.evidence()
			page := render(t, e)
			require.Len(t, e.Report.Violations, 1)
			assert.Contains(t, page, test.verdict)
			before, section, found := strings.Cut(page, `id="V1">`)
			require.True(t, found)
			assert.Contains(t, before, `✕ violations: 1`)
			assert.Equal(t, 3, strings.Count(before, "✓ kept"))
			assert.Contains(t, before, `<a href="#V1">▲ V1</a> `+test.rule+`, Mac `)
			section, rest, _ := strings.Cut(section, "</article>")
			assert.Contains(t, section, "V1 · "+test.rule+" · Mac ")
			for _, record := range test.records {
				assert.Contains(t, section, record)
			}
			for _, record := range b.records {
				if slices.Contains(test.records, record.Namespace+"/"+record.Name) {
					assert.Contains(t, section, record.Hash)
				}
			}
			assert.Contains(t, rest, `<path class="violation" d="M0,-6 L6.5,5.5 L-6.5,5.5 Z"/><text class="in-mark" y="4.5">!</text><text class="mark" x="8" y="3.5">V1</text>`)
			assert.Contains(t, rest, `<a class="flag" href="#V1">`)
			assert.Contains(t, page, test.drawn)
		})
	}
}

// Names and messages are text, whatever they contain.
func TestEvidenceOfHostileNames(t *testing.T) {
	const hostile = `</title></style><script>alert(1)</script><img src=x onerror=alert(1)>"'><svg onload=alert(1)>{{.}}`
	b := newBook(t)
	b.at(300)
	lease := b.bind(hostile, hostile, "A4")
	lease.Name = hostile
	record := ledger.NewInstanceRejected(vm(lease, hostile), lease, hostile, hostile, hostile)
	record.Actor.Username = hostile
	b.add(record)
	b.add(ledger.NewInstanceStarted(vm(lease, hostile), lease, 3))
	b.add(ledger.NewNodeQuarantined(&rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: hostile}, Spec: rack.MacNodeSpec{SerialNumber: "C07A4" + hostile},
		Status: rack.MacNodeStatus{Quarantine: &rack.Quarantine{Reason: hostile, Message: hostile}}}))
	b.at(336)
	e := b.evidence()
	e.File = hostile
	page := render(t, e)
	assert.NotContains(t, page, "<script")
	assert.NotContains(t, page, "<img")
	assert.Contains(t, page, "&lt;img src=x")
}

// A page has the number of the events that it does not draw.
func TestEvidenceOfTooManyEvents(t *testing.T) {
	b := newBook(t)
	e := b.evidence()
	refused := b.records[4]
	require.Equal(t, rack.InstanceRejected, refused.Type)
	for range maxEvents + 1 {
		e.History.Add(refused)
	}
	assert.Contains(t, render(t, e), "Not drawn: 2 further VMs and events.")
}
