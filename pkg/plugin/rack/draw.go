package rack

import (
	"cmp"
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
	minBox   = 34
	maxBox   = 44
	maxLabel = 14
	maxPhase = 11 // Quarantined, Maintenance
)

// A mark is the symbol and the colour of a phase. Phases differ by symbol, not only by colour.
type mark struct {
	symbol string
	colour terminal.Colour
}

var marks = map[string]mark{
	string(rackv1alpha1.MacNodeAvailable):   {"○", terminal.Green},
	string(rackv1alpha1.MacNodeLeased):      {"●", terminal.Cyan},
	string(rackv1alpha1.MacNodeLeaseBound):  {"●", terminal.Cyan},
	string(rackv1alpha1.MacNodeLeaseHeld):   {"◐", terminal.Yellow},
	string(rackv1alpha1.MacNodeReleasing):   {"◌", terminal.Yellow},
	string(rackv1alpha1.MacNodeOffline):     {"×", terminal.Red},
	string(rackv1alpha1.MacNodeQuarantined): {"▲", terminal.Red},
	string(rackv1alpha1.MacNodeMaintenance): {"□", terminal.Blue},
	string(rackv1alpha1.MacNodePending):     {"…", terminal.Faint},
}

// draw returns the picture as lines.
func draw(p *Picture, now time.Time, style terminal.Style) []string {
	lines := []string{terminal.Cut(summary(p), style.Width)}
	for i := 0; i < len(p.Macs); {
		end := i
		for end < len(p.Macs) && p.Macs[end].Site == p.Macs[i].Site && p.Macs[end].Rack == p.Macs[i].Rack {
			end++
		}
		lines = append(lines, "", style.Paint(terminal.Bold, terminal.Cut(place(p.Macs[i]), style.Width)))
		lines = append(lines, drawRack(p.Macs[i:end], now, style)...)
		i = end
	}
	if len(p.Pending) > 0 {
		lines = append(lines, "", "Leases that wait for a Mac:")
		for _, l := range p.Pending {
			text := fmt.Sprintf("  %s/%s, class %s: %s", l.Namespace, l.Name, l.ClassName, cmp.Or(l.Reason, "Pending"))
			lines = append(lines, terminal.Cut(terminal.Clean(text), style.Width))
		}
	}
	return lines
}

// summary returns the number of Macs of each phase.
func summary(p *Picture) string {
	counts := map[string]int{}
	var phases []string
	for _, mac := range p.Macs {
		if counts[mac.Phase]++; counts[mac.Phase] == 1 {
			phases = append(phases, mac.Phase)
		}
	}
	slices.Sort(phases)
	var parts []string
	for _, phase := range phases {
		parts = append(parts, fmt.Sprintf("%d %s", counts[phase], terminal.Clean(phase)))
	}
	noun := "Macs"
	if len(p.Macs) == 1 {
		noun = "Mac"
	}
	text := fmt.Sprintf("%d %s", len(p.Macs), noun)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

func place(mac Mac) string {
	var parts []string
	if mac.Site != "" {
		parts = append(parts, "site "+terminal.Clean(mac.Site))
	}
	if mac.Rack != "" {
		parts = append(parts, "rack "+terminal.Clean(mac.Rack))
	}
	return cmp.Or(strings.Join(parts, ", "), "location unknown")
}

// drawRack draws the shelves of a rack, with as many Macs side by side as the width allows.
func drawRack(macs []Mac, now time.Time, style terminal.Style) []string {
	label := 0
	for _, mac := range macs {
		label = max(label, terminal.Width(shelf(mac)))
	}
	label = min(label, maxLabel)
	indent := "  "
	if label > 0 {
		indent += strings.Repeat(" ", label+1)
	}
	space := style.Width - len(indent)
	columns := max((space+1)/(minBox+1), 1)
	box := min((space-(columns-1))/columns, maxBox)

	var lines []string
	for i := 0; i < len(macs); {
		end := i
		for end < len(macs) && macs[end].Shelf == macs[i].Shelf && end-i < columns {
			end++
		}
		rows := make([]string, boxHeight)
		for n, mac := range macs[i:end] {
			for row, text := range drawMac(mac, now, box, style) {
				if n > 0 {
					rows[row] += " "
				}
				rows[row] += text
			}
		}
		for row, text := range rows {
			start := indent
			if row == 0 && label > 0 {
				start = "  " + terminal.Fill(shelf(macs[i]), label) + " "
			}
			lines = append(lines, start+text)
		}
		i = end
	}
	return lines
}

func shelf(mac Mac) string {
	if mac.Shelf == "" {
		return ""
	}
	return "shelf " + terminal.Clean(mac.Shelf)
}

const boxHeight = 4

// drawMac draws a Mac as a box of the width.
func drawMac(mac Mac, now time.Time, width int, style terminal.Style) [boxHeight]string {
	m, known := marks[mac.Phase]
	if !known {
		m = mark{"?", terminal.Plain}
	}
	frame := func(text string) string { return style.Paint(m.colour, text) }
	phase := m.symbol + " " + terminal.Cut(terminal.Clean(mac.Phase), maxPhase)
	name := terminal.Cut(terminal.Clean(mac.Name), width-terminal.Width(phase)-7)
	rule := strings.Repeat("─", max(width-terminal.Width(name)-terminal.Width(phase)-6, 1))

	inner := width - 4
	floor := floorText(mac, now)
	owner := terminal.Fill(ownerText(mac), max(inner-terminal.Width(floor)-1, 0))
	line := func(text string) string { return frame("│") + " " + text + " " + frame("│") }
	return [boxHeight]string{
		frame("┌ ") + style.Paint(terminal.Bold, name) + frame(" "+rule+" "+phase+" ┐"),
		line(owner + " " + floor),
		line(drawSlots(mac.Slots, inner, style)),
		frame("└" + strings.Repeat("─", width-2) + "┘"),
	}
}

func ownerText(mac Mac) string {
	if mac.Tenant == "" {
		return terminal.Clean(mac.ClassName)
	}
	return terminal.Clean(mac.Tenant + "/" + mac.Lease)
}

func floorText(mac Mac, now time.Time) string {
	switch {
	case mac.floor.IsZero():
		return ""
	case rules.FloorPassed(now, mac.floor):
		return "floor passed"
	}
	return "floor in " + cmdutil.Span(mac.floor.Sub(now))
}

func drawSlots(slots []string, width int, style terminal.Style) string {
	each := (width - (len(slots) - 1)) / len(slots)
	var cells []string
	used := 0
	for i, name := range slots {
		if i == len(slots)-1 {
			each = width - used
		}
		used += each + 1
		text, colour := terminal.Clean(name), terminal.Plain
		switch name {
		case "":
			text, colour = "free", terminal.Faint
		case hiddenSlot:
			text = "in use"
		}
		cells = append(cells, "["+style.Paint(colour, terminal.Fill(text, each-2))+"]")
	}
	return strings.Join(cells, " ")
}
