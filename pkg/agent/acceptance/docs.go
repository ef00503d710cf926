package acceptance

import (
	"fmt"
	"strings"
)

// width is the width of a line of the documentation.
const width = 100

// Markers of the generated part of a page.
const (
	beginMarker = "<!-- Generated from pkg/agent/acceptance; go test ./pkg/agent/acceptance -update -->"
	endMarker   = "<!-- End of the generated part -->"
)

// Documentation returns the checks of a page as Markdown.
func Documentation(page Page) string {
	var b strings.Builder
	section := ""
	for _, check := range Checks() {
		if check.Page != page {
			continue
		}
		if check.Section != section {
			section = check.Section
			if section != "" {
				fmt.Fprintf(&b, "\n### %s\n", section)
			}
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "- **%s**: `%s`\n", check.Title, check.ID)
		for _, part := range []struct{ name, text string }{{"Steps", check.Steps}, {"Expected", check.Expected}, {"Background", check.Background}} {
			if part.text != "" {
				b.WriteString(wrap("  - "+part.name+":", part.text, "    "))
			}
		}
	}
	return strings.TrimLeft(b.String(), "\n")
}

// wrap breaks text after begin into lines of at most width. Further lines begin with indent.
func wrap(begin, text, indent string) string {
	var b strings.Builder
	line := begin
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = indent + word
		} else {
			line += " " + word
		}
	}
	return b.String() + line + "\n"
}

// replace returns a page with the generated part replaced.
func replace(page, generated string) (string, error) {
	before, rest, found := strings.Cut(page, beginMarker)
	_, after, foundEnd := strings.Cut(rest, endMarker)
	if !found || !foundEnd {
		return "", fmt.Errorf("the page has no part between %q and %q", beginMarker, endMarker)
	}
	return before + beginMarker + "\n\n" + generated + "\n" + endMarker + after, nil
}
