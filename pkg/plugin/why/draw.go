package why

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/terminal"
)

// nouns are the names of kinds for people.
var nouns = map[string]string{"MacNodeLease": "Lease", "MacOSInstance": "Instance", "MacNode": "Mac"}

// draw returns the explanation as lines. Commands are not wrapped, so that they can be copied.
func draw(e *Explanation, now time.Time, style terminal.Style) []string {
	name := e.Object.Name
	if e.Object.Namespace != "" {
		name = e.Object.Namespace + "/" + name
	}
	lines := []string{style.Paint(terminal.Bold, terminal.Cut(terminal.Clean(fmt.Sprintf("%s %s is %s.", nouns[e.Object.Kind], name, e.Phase)), style.Width))}
	add := func(indent, text string) {
		for _, line := range terminal.Wrap(terminal.Clean(text), style.Width-len(indent)) {
			lines = append(lines, indent+line)
		}
	}
	if b := e.Blocking; b == nil {
		add("", "No condition blocks it.")
	} else {
		colour := terminal.Yellow
		if b.Status == metav1.ConditionTrue {
			colour = terminal.Red
		}
		title := fmt.Sprintf("%s is %s for %s, since %s: %s", b.Type, b.Status, cmdutil.Span(max(now.Sub(b.since), 0)), b.Since, b.Reason)
		lines = append(lines, style.Paint(colour, terminal.Cut(terminal.Clean(title), style.Width)))
		add("  ", b.Message)
	}
	for _, fact := range e.Facts {
		add("", fact)
	}
	if len(e.Next) > 0 {
		lines = append(lines, "", "Next:")
		for _, step := range e.Next {
			add("  # ", step.Purpose)
			lines = append(lines, "  "+style.Paint(terminal.Cyan, terminal.Clean(step.Command)))
		}
	}
	if len(e.Events) > 0 {
		lines = append(lines, "", "Last Events:")
		for _, event := range e.Events {
			text := fmt.Sprintf("%s %s: %s", event.Time, event.Reason, event.Message)
			if event.Count > 1 {
				text += fmt.Sprintf(" (%d times)", event.Count)
			}
			add("  ", text)
		}
	}
	if len(e.Records) > 0 {
		lines = append(lines, "", "Last records:")
		for _, r := range e.Records {
			text := fmt.Sprintf("%s %s by %s", r.Time, r.Type, r.Actor)
			if details := strings.TrimSpace(r.Reason + " " + r.Message); details != "" {
				text += ": " + details
			}
			add("  ", text)
		}
	}
	return append(lines, cmdutil.NoticeLines(e.Notices, nil, style)...)
}
