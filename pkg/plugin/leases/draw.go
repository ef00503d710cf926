package leases

import (
	"fmt"
	"slices"
	"strings"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/terminal"
	"macrack.io/macrack/pkg/rules"
)

const (
	// horizon limits the timeline on both sides of now, so that a day stays visible.
	horizon = 7 * 24 * time.Hour
	// margin is the minimum time on both sides of now.
	margin = time.Hour

	maxName    = 20
	maxMac     = 12
	phaseWidth = 9 // Releasing
	floorWidth = 7 // "in 23h", "passed"
	minBar     = 12
	columnGap  = 1
)

// Symbols of the timeline.
const (
	leased  = '━'
	held    = '▒'
	ahead   = '╌' // until the floor
	floor   = '◆'
	expiry  = '◇'
	present = '│'
	earlier = '◀' // the lease began before the timeline
	later   = '▶' // the floor is after the timeline
)

// axis maps times to the columns of the bars.
type axis struct {
	from, to time.Time
	width    int
}

// column returns the column of a time. It is negative, or at least the width, outside the axis.
func (a axis) column(t time.Time) int {
	switch {
	case t.Before(a.from):
		return -1
	case t.After(a.to):
		return a.width
	}
	return min(int(float64(a.width)*float64(t.Sub(a.from))/float64(a.to.Sub(a.from))), a.width-1)
}

func newAxis(leases []Lease, now time.Time, width int) axis {
	a := axis{from: now.Add(-margin), to: now.Add(margin), width: width}
	for _, l := range leases {
		for _, t := range []time.Time{l.bound, l.floor, l.expires} {
			if t.IsZero() {
				continue
			}
			if t.Before(a.from) {
				a.from = t
			}
			if t.After(a.to) {
				a.to = t
			}
		}
	}
	if limit := now.Add(-horizon); a.from.Before(limit) {
		a.from = limit
	}
	if limit := now.Add(horizon); a.to.After(limit) {
		a.to = limit
	}
	return a
}

// draw returns the timeline as lines. Names have their namespace if all is set.
func draw(t *Timeline, now time.Time, all bool, style terminal.Style) []string {
	if len(t.Leases) == 0 {
		return []string{"No leases found."}
	}
	name, mac := 5, 3
	for _, l := range t.Leases {
		name, mac = max(name, terminal.Width(nameOf(l, all))), max(mac, terminal.Width(terminal.Clean(l.NodeName)))
	}
	mac = min(mac, maxMac)
	bar := func() int { return style.Width - name - mac - phaseWidth - floorWidth - 4*columnGap }
	name = min(name, maxName, max(name+bar()-minBar, 5))
	a := newAxis(t.Leases, now, max(bar(), 1))
	prefix := strings.Repeat(" ", name+mac+phaseWidth+3*columnGap)

	row := func(cells ...string) string { return strings.TrimRight(strings.Join(cells, " "), " ") }
	lines := []string{
		prefix + style.Paint(terminal.Faint, a.labels(now)),
		style.Paint(terminal.Faint, row(terminal.Fill("LEASE", name), terminal.Fill("MAC", mac), terminal.Fill("PHASE", phaseWidth), terminal.Fill(a.ruler(now), a.width), "FLOOR")),
	}
	for _, l := range t.Leases {
		lines = append(lines, row(
			terminal.Fill(nameOf(l, all), name), terminal.Fill(terminal.Clean(l.NodeName), mac),
			style.Paint(colourOf(l.Phase), terminal.Fill(terminal.Clean(l.Phase), phaseWidth)),
			a.bar(l, now, style), floorText(l, now)))
	}
	return append(lines, "", style.Paint(terminal.Faint, terminal.Cut("━ leased  ▒ held  ╌ until the floor  ◆ floor  ◇ expiry  │ now; times are UTC", style.Width)))
}

func nameOf(l Lease, all bool) string {
	if all {
		return terminal.Clean(l.Namespace + "/" + l.Name)
	}
	return terminal.Clean(l.Name)
}

func colourOf(phase string) terminal.Colour {
	switch rackv1alpha1.MacNodeLeasePhase(phase) {
	case rackv1alpha1.MacNodeLeaseBound:
		return terminal.Green
	case rackv1alpha1.MacNodeLeaseHeld, rackv1alpha1.MacNodeLeaseReleasing:
		return terminal.Yellow
	case rackv1alpha1.MacNodeLeasePending:
		return terminal.Blue
	}
	return terminal.Faint
}

func floorText(l Lease, now time.Time) string {
	switch {
	case l.floor.IsZero():
		return "-"
	case rules.FloorPassed(now, l.floor):
		return "passed"
	}
	return terminal.Cut("in "+cmdutil.Span(l.floor.Sub(now)), floorWidth)
}

const labelFormat = "Jan 2 15:04"

// labels returns the times at both ends of the axis, and now if there is space.
func (a axis) labels(now time.Time) string {
	from, to := a.from.UTC().Format(labelFormat), a.to.UTC().Format(labelFormat)
	if a.width < len(from)+len(to)+1 {
		return terminal.Fill("now "+now.UTC().Format("15:04"), a.width)
	}
	line := []rune(from + strings.Repeat(" ", a.width-len(from)-len(to)) + to)
	label := []rune("now")
	at := a.column(now) - 1
	if at > len(from) && at+len(label) < a.width-len(to) {
		copy(line[at:], label)
	}
	return string(line)
}

// ruler returns the line below the labels.
func (a axis) ruler(now time.Time) string {
	line := []rune(strings.Repeat("─", a.width))
	line[0], line[len(line)-1], line[a.column(now)] = '├', '┤', '┼'
	return string(line)
}

// bar returns the bar of a lease, or the reason for its wait.
func (a axis) bar(l Lease, now time.Time, style terminal.Style) string {
	if l.bound.IsZero() {
		text := fmt.Sprintf("waits %s: %s", cmdutil.Span(now.Sub(l.created)), terminal.Clean(l.Reason+" "+l.Message))
		return terminal.Fill(text, a.width)
	}
	cells := []rune(strings.Repeat(" ", a.width))
	fill := func(from, to time.Time, symbol rune) {
		for i := max(a.column(from), 0); i <= min(a.column(to), a.width-1) && to.After(from); i++ {
			cells[i] = symbol
		}
	}
	end := now
	if !l.released.IsZero() {
		end = l.released
	}
	fill(now, l.floor, ahead)
	if l.held.IsZero() {
		fill(l.bound, end, leased)
	} else {
		fill(l.bound, l.held, leased)
		fill(l.held, slices.MaxFunc([]time.Time{l.floor, end}, time.Time.Compare), held)
	}
	put := func(at time.Time, symbol rune) {
		switch i := a.column(at); {
		case at.IsZero():
		case i < 0:
			cells[0] = earlier
		case i >= a.width:
			cells[a.width-1] = later
		default:
			cells[i] = symbol
		}
	}
	if a.column(l.bound) < 0 {
		cells[0] = earlier
	}
	if i := a.column(now); cells[i] == ' ' || cells[i] == ahead {
		cells[i] = present
	}
	put(l.expires, expiry)
	put(l.floor, floor)
	return style.Paint(colourOf(l.Phase), string(cells))
}
