package timeline

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)

func at(hours float64) time.Time { return start.Add(time.Duration(hours * float64(time.Hour))) }

// draw returns the SVG, which must be well-formed XML.
func draw(t *testing.T, timeline *Timeline) string {
	t.Helper()
	drawn, err := timeline.SVG()
	require.NoError(t, err)
	decoder := xml.NewDecoder(strings.NewReader(string(drawn)))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return string(drawn)
		}
		require.NoError(t, err, string(drawn))
	}
}

func TestTimelineOfALease(t *testing.T) {
	svg := draw(t, &Timeline{ID: "mac-0", Title: "Mac", From: start, To: at(100),
		Leases: []Lease{{Label: "L1 acme/build-of-the-release-branch", Key: "L1", BoundAt: at(10), Floor: at(34), Held: at(20), BillableUntil: at(34), Release: at(36)}},
		VMs:    []VM{{"acme/one", at(11), at(12)}, {"acme/two", at(11.5), time.Time{}}},
		Events: []Event{{Kind: Rejection, At: at(15), Count: 3, Text: "no"}, {Kind: Quarantine, At: at(40), Text: "stuck"}},
	})
	for _, want := range []string{
		`class="lease tone-0" x="121.8"`, `class="held" x="187.6"`, `class="releasing"`, `class="floor"`,
		"L1 acme/build-of-the-release-branch: bound 2026-08-01T10:00:00Z, floor 2026-08-02T10:00:00Z, deleted 2026-08-01T20:00:00Z, released 2026-08-02T12:00:00Z",
		"acme/one: started 2026-08-01T11:00:00Z, stopped 2026-08-01T12:00:00Z", `class="rejection"`, `class="quarantine"`, ">3</text>", `aria-label="Mac"`,
	} {
		assert.Contains(t, svg, want)
	}
	assert.Contains(t, svg, ">L1</text>", "the key, where the label has no room")
	assert.NotContains(t, svg, `class="vm over"`)
}

// Violations have shapes and places of their own, not only colours.
func TestTimelineOfViolations(t *testing.T) {
	svg := draw(t, &Timeline{From: start, To: at(48),
		Leases: []Lease{
			{Label: "acme/a", Key: "L1", BoundAt: at(1), Floor: at(25)},
			{Label: "globex/b", Key: "L2", Tone: 1, BoundAt: at(2), Floor: at(26)},
		},
		VMs:    []VM{{"1", at(1), at(9)}, {"2", at(1), at(9)}, {"3", at(2), at(9)}},
		Events: []Event{{Kind: Violation, At: at(2), Label: "V1", Text: "two tenants"}, {Kind: Violation, At: at(2), Label: "V2", Text: "three"}},
	})
	assert.Contains(t, svg, "VM 3</text>")
	assert.Equal(t, 1, strings.Count(svg, `<rect class="vm over"`))
	assert.Contains(t, svg, ">V1</text>")
	assert.Contains(t, svg, ">V2</text>")
	assert.Equal(t, 2, strings.Count(svg, `class="violation"`), "marks of violations are never merged")
	bars := strings.Split(svg, `<rect class="lease`)[1:]
	require.Len(t, bars, 2)
	assert.NotEqual(t, attribute(bars[0], "y"), attribute(bars[1], "y"), "overlapping leases are in two lanes")
}

func attribute(element, name string) string {
	_, rest, _ := strings.Cut(element, " "+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// Every text is escaped: tenants choose names and messages.
func TestTimelineOfHostileTexts(t *testing.T) {
	const hostile = `"><script>alert(1)</script></title><img src=x onerror=alert(1)>'&`
	svg := draw(t, &Timeline{ID: hostile, Title: hostile, From: start, To: at(10),
		Leases: []Lease{{Label: hostile, Key: hostile, BoundAt: at(0), Floor: at(24)}},
		VMs:    []VM{{hostile, at(1), at(2)}},
		Events: []Event{{Kind: hostile, At: at(2), Label: hostile, Text: hostile}},
	})
	assert.NotContains(t, svg, "<script")
	assert.NotContains(t, svg, "<img")
}

// The size of a drawing is limited, whatever a tenant does.
func TestTimelineOfManyVMsAndEvents(t *testing.T) {
	timeline := &Timeline{From: start, To: at(90 * 24)}
	for i := range 20_000 {
		from := at(float64(i) * 0.1)
		timeline.VMs = append(timeline.VMs, VM{"acme/vm", from, from.Add(5 * time.Minute)})
		timeline.Events = append(timeline.Events, Event{Kind: Rejection, At: from, Text: "no"})
	}
	svg := draw(t, timeline)
	assert.Less(t, len(svg), 150_000)
	assert.Contains(t, svg, "several virtual machines")
}

func TestTimelineOutsideItsWindow(t *testing.T) {
	svg := draw(t, &Timeline{From: at(24), To: at(48),
		Leases: []Lease{{Label: "before", BoundAt: at(0), Floor: at(20), Release: at(20)}, {Label: "after", BoundAt: at(50)}, {Label: "through", BoundAt: at(0), Floor: at(24)}},
		VMs:    []VM{{"before", at(1), at(2)}, {"after", at(49), at(50)}},
		Events: []Event{{Kind: Rejection, At: at(1)}, {Kind: Rejection, At: at(49)}},
	})
	assert.Equal(t, 1, strings.Count(svg, `<rect class="lease`))
	assert.Contains(t, svg, `class="lease tone-0" x="56.0" y="22.0" width="658.0"`, "open on both sides")
	assert.NotContains(t, svg, `class="vm"`)
	assert.NotContains(t, svg, `class="rejection"`)
}

func TestTicks(t *testing.T) {
	for days, want := range map[float64]string{0.01: ">00:10<", 0.25: ">05:00<", 1: ">1 Aug 06:00<", 7: ">4 Aug<", 30: ">10 Aug<", 365: "2026<"} {
		svg := draw(t, &Timeline{From: start, To: at(days * 24)})
		assert.Contains(t, svg, want, days)
		assert.LessOrEqual(t, strings.Count(svg, `class="grid"`), 10, days)
	}
	assert.NotEmpty(t, draw(t, &Timeline{From: start, To: start}), "an empty window")
}

func TestLegend(t *testing.T) {
	legend, err := Legend()
	require.NoError(t, err)
	assert.Contains(t, legend, "held: deleted, before its floor")
}
