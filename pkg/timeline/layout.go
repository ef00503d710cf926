package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"macrack.io/macrack/pkg/rules"
)

// Sizes in pixels.
const (
	width     = 720.0
	left      = 56.0
	right     = width - 6
	eventLane = 15.0
	leaseLane = 24.0
	vmLane    = 10.0
	axis      = 16.0
	gap       = 5.0
	character = 5.6 // the average width of a character in a label
	minBar    = 1.5
	shared    = 12.0 // distance within which events share a mark
)

// A layout is a timeline with coordinates.
type layout struct {
	*Timeline
	Width, Height, Left, Right float64
	Tracks                     []track
	Ticks                      []tick
	Bars                       []bar
	Floors                     []floor
	Labels                     []label
	VMBars                     []vmBar
	Marks                      []mark
	AxisY                      float64
}

// A track is a row with a name.
type track struct {
	Label     string
	Y, Height float64
	Over      bool // above the limit of virtual machines
}

type tick struct {
	X, LabelX float64
	Label     string
}

type bar struct {
	X, Y, Width, Height float64
	Class, Title        string
}

type label struct {
	X, Y float64
	Text string
}

type floor struct {
	X, Y, Bottom float64
	Title        string
}

type vmBar struct {
	X, Y, Width float64
	Over        bool
	Title       string
}

type mark struct {
	Kind        EventKind
	X, Y        float64
	Text, Title string
}

func newLayout(t *Timeline) *layout {
	l := &layout{Timeline: t, Width: width, Left: left, Right: right}
	y := l.placeEvents(2) + gap
	y = l.placeLeases(y) + gap
	y = l.placeVMs(y) + gap
	l.AxisY = y
	l.Height = y + axis
	l.Ticks = l.placeTicks()
	return l
}

// x returns the coordinate of a time; the zero time is the end of the window.
func (l *layout) x(at time.Time) float64 {
	if at.IsZero() || at.After(l.To) {
		return right
	}
	if at.Before(l.From) {
		return left
	}
	return left + (right-left)*float64(at.Sub(l.From))/float64(max(1, l.To.Sub(l.From)))
}

// meets reports whether a period is visible; a zero end is open.
func (l *layout) meets(from, to time.Time) bool {
	return from.Before(l.To) && (to.IsZero() || to.After(l.From))
}

// lanes assigns each period to the first lane that is free when it begins.
type lanes []float64

func (n *lanes) place(from, to float64) int {
	for i, busyUntil := range *n {
		if from >= busyUntil {
			(*n)[i] = to
			return i
		}
	}
	*n = append(*n, to)
	return len(*n) - 1
}

func (l *layout) placeEvents(y float64) float64 {
	var used lanes
	for _, e := range l.merged() {
		x := l.x(e.At)
		text := e.Label
		if text == "" && e.Count > 1 {
			text = strconv.FormatInt(e.Count, 10)
		}
		lane := used.place(x, x+14+character*float64(utf8.RuneCountInString(text)))
		l.Marks = append(l.Marks, mark{
			Kind: e.Kind, X: x, Y: y + eventLane*(float64(lane)+0.5), Text: text,
			Title: fmt.Sprintf("%s: %s", e.At.UTC().Format(time.RFC3339), e.Text),
		})
	}
	height := eventLane * float64(max(1, len(used)))
	l.Tracks = append(l.Tracks, track{Label: "events", Y: y, Height: height})
	return y + height
}

// merged returns the visible events in order, with close ones of the same kind as one.
func (l *layout) merged() []Event {
	events := slices.Clone(l.Events)
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Kind, b.Kind)) })
	var merged []Event
	last := map[EventKind]int{}
	for _, e := range events {
		if !l.meets(e.At, e.At.Add(1)) {
			continue
		}
		e.Count = max(1, e.Count)
		if i, found := last[e.Kind]; found && e.Label == "" && l.x(e.At)-l.x(merged[i].At) < shared {
			merged[i].Count += e.Count
			merged[i].Text = fmt.Sprintf("%d events of this kind, until %s", merged[i].Count, e.At.UTC().Format(time.RFC3339))
			continue
		}
		merged = append(merged, e)
		if e.Label == "" {
			last[e.Kind] = len(merged) - 1
		}
	}
	return merged
}

func (l *layout) placeLeases(y float64) float64 {
	var used lanes
	leases := slices.Clone(l.Leases)
	slices.SortStableFunc(leases, func(a, b Lease) int { return a.BoundAt.Compare(b.BoundAt) })
	for _, lease := range leases {
		if !l.meets(lease.BoundAt, lease.Release) {
			continue
		}
		from, to := l.x(lease.BoundAt), l.x(lease.Release)
		lane := used.place(from, to)
		l.placeLease(lease, from, max(to, from+minBar), y+leaseLane*float64(lane))
	}
	height := leaseLane * float64(max(1, len(used)))
	l.Tracks = append(l.Tracks, track{Label: "leases", Y: y, Height: height - 4})
	return y + height - 4
}

// placeLease draws the parts of a lease: used, held, and releasing after its billable time.
func (l *layout) placeLease(lease Lease, from, to, y float64) {
	const height = leaseLane - 4
	title := lease.describe()
	part := func(class string, a, b float64) {
		if b > a {
			l.Bars = append(l.Bars, bar{X: a, Y: y, Width: b - a, Height: height, Class: class, Title: title})
		}
	}
	usedUntil, billableUntil := to, to
	if !lease.BillableUntil.IsZero() {
		billableUntil = min(to, l.x(lease.BillableUntil))
		usedUntil = billableUntil
	}
	if !lease.Held.IsZero() && lease.Held.Before(lease.Floor) {
		usedUntil = min(billableUntil, l.x(lease.Held))
	}
	whole := bar{X: from, Y: y, Width: to - from, Height: height, Class: fmt.Sprintf("lease tone-%d", lease.Tone%tones), Title: title}
	for _, text := range []string{lease.Label, lease.Key} {
		if character*float64(utf8.RuneCountInString(text))+6 <= to-from {
			l.Labels = append(l.Labels, label{X: from + 4, Y: y, Text: text})
			break
		}
	}
	l.Bars = append(l.Bars, whole)
	part("held", usedUntil, billableUntil)
	part("releasing", billableUntil, to)
	if !lease.Floor.Before(l.From) && !lease.Floor.After(l.To) && !lease.Floor.IsZero() {
		l.Floors = append(l.Floors, floor{X: l.x(lease.Floor), Y: y - 2, Bottom: y + height + 2, Title: "floor: " + lease.Floor.UTC().Format(time.RFC3339)})
	}
}

// tones is the number of colours of tenants.
const tones = 6

func (l Lease) describe() string {
	text := fmt.Sprintf("%s: bound %s, floor %s", l.Label, l.BoundAt.UTC().Format(time.RFC3339), l.Floor.UTC().Format(time.RFC3339))
	if !l.Held.IsZero() {
		text += ", deleted " + l.Held.UTC().Format(time.RFC3339)
	}
	if !l.Release.IsZero() {
		text += ", released " + l.Release.UTC().Format(time.RFC3339)
	}
	return text
}

func (l *layout) placeVMs(y float64) float64 {
	var used lanes
	vms := slices.Clone(l.VMs)
	slices.SortStableFunc(vms, func(a, b VM) int { return a.From.Compare(b.From) })
	last := map[int]int{} // the last bar of each lane
	for _, vm := range vms {
		if !l.meets(vm.From, vm.To) {
			continue
		}
		from, to := l.x(vm.From), l.x(vm.To)
		lane := used.place(from, to)
		title := vm.Label + ": started " + vm.From.UTC().Format(time.RFC3339)
		if !vm.To.IsZero() {
			title += ", stopped " + vm.To.UTC().Format(time.RFC3339)
		}
		b := vmBar{X: from, Y: y + vmLane*float64(lane), Width: max(to-from, minBar), Over: lane >= rules.MaxVMsPerMac, Title: title}
		// Many short virtual machines are one bar where the eye could not tell them apart.
		if i, found := last[lane]; found && from-(l.VMBars[i].X+l.VMBars[i].Width) < 0.5 && l.VMBars[i].Width+b.Width < 4 {
			l.VMBars[i].Width = b.X + b.Width - l.VMBars[i].X
			l.VMBars[i].Title = "several virtual machines"
			continue
		}
		last[lane] = len(l.VMBars)
		l.VMBars = append(l.VMBars, b)
	}
	for lane := range max(rules.MaxVMsPerMac, len(used)) {
		label := fmt.Sprintf("VM %d", lane+1)
		l.Tracks = append(l.Tracks, track{Label: label, Y: y + vmLane*float64(lane), Height: vmLane - 2, Over: lane >= rules.MaxVMsPerMac})
	}
	return y + vmLane*float64(max(rules.MaxVMsPerMac, len(used)))
}

// steps are the distances between ticks, with the formats of their labels.
var steps = []struct {
	step   time.Duration
	format string
}{
	{time.Minute, "15:04"}, {10 * time.Minute, "15:04"}, {time.Hour, "15:04"}, {3 * time.Hour, "2 Jan 15:04"}, {6 * time.Hour, "2 Jan 15:04"}, {12 * time.Hour, "2 Jan 15:04"},
	{24 * time.Hour, "2 Jan"}, {2 * 24 * time.Hour, "2 Jan"}, {7 * 24 * time.Hour, "2 Jan"}, {14 * 24 * time.Hour, "2 Jan"},
	{30 * 24 * time.Hour, "2 Jan 2006"}, {91 * 24 * time.Hour, "2 Jan 2006"}, {365 * 24 * time.Hour, "2 Jan 2006"}, {4 * 365 * 24 * time.Hour, "2 Jan 2006"},
}

// placeTicks returns at most nine ticks, in UTC.
func (l *layout) placeTicks() (ticks []tick) {
	const most = 9
	chosen := steps[len(steps)-1]
	for _, s := range steps {
		if l.To.Sub(l.From) <= most*s.step {
			chosen = s
			break
		}
	}
	first := l.From.UTC().Truncate(chosen.step)
	for at := first; !at.After(l.To); at = at.Add(chosen.step) {
		if at.Before(l.From) {
			continue
		}
		label := at.Format(chosen.format)
		half := character * float64(len(label)) / 2
		ticks = append(ticks, tick{l.x(at), min(l.x(at), width-half), label})
	}
	return ticks
}
