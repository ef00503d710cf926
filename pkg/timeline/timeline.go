// Package timeline draws the timeline of a Mac as SVG: its leases with their floors and held parts,
// its virtual machines, and events. The SVG needs no script and no network. All texts are escaped.
package timeline

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"time"
)

// Style is the CSS of timelines, for the page that has them.
//
//go:embed timeline.css
var Style string

// A Timeline is what a Mac did in a window of time.
type Timeline struct {
	// ID distinguishes the timelines of a page.
	ID string
	// Title describes the timeline to screen readers.
	Title    string
	From, To time.Time
	Leases   []Lease
	VMs      []VM
	Events   []Event
}

// A Lease is a bar. Zero times are unknown, or have not come yet.
type Lease struct {
	// Label is shown in the bar, if it has room. Key is shown in a smaller bar.
	Label, Key string
	// Tone is the number of the tenant; tenants with different tones have different colours.
	Tone                          int
	BoundAt, Floor, Held, Release time.Time
	// BillableUntil is the deletion, but not before the floor.
	BillableUntil time.Time
}

// A VM is a thin bar. To is zero while it runs.
type VM struct {
	Label    string
	From, To time.Time
}

// EventKind is the shape of an event.
type EventKind string

const (
	// Rejection is a refused request.
	Rejection EventKind = "rejection"
	// Quarantine is the beginning of a quarantine.
	Quarantine EventKind = "quarantine"
	// Violation is a violation of a rule, or a break of the ledger.
	Violation EventKind = "violation"
)

// An Event is a mark at a time. Close events of the same kind without a label share a mark.
type Event struct {
	Kind  EventKind
	At    time.Time
	Count int64
	// Label is shown beside the mark; Text describes it.
	Label, Text string
}

//go:embed timeline.svg.tmpl
var svg string

var templates = template.Must(template.New("timeline").Funcs(template.FuncMap{"px": px, "sub": func(a, b float64) float64 { return a - b }}).Parse(svg))

// px formats a coordinate. The result has digits, a sign and a point only.
func px(x float64) string { return fmt.Sprintf("%.1f", x) }

// SVG returns the drawing.
func (t *Timeline) SVG() (template.HTML, error) { return execute("timeline", newLayout(t)) }

// Legend returns a drawing that explains the shapes.
func Legend() (template.HTML, error) { return execute("legend", nil) }

func execute(name string, data any) (template.HTML, error) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		return "", err
	}
	return template.HTML(b.String()), nil
}
