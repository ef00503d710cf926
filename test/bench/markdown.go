package main

import (
	"fmt"
	"os"
	"strings"
)

// minimumRounds is the number of rounds that a conclusion needs.
const minimumRounds = 5

// Block is the result of a part, as documented.
type Block struct {
	Part string `json:"part"`
	Provenance
	// Simulated states what is real and what is simulated.
	Simulated string   `json:"simulated"`
	Results   []Result `json:"results"`
	// Note follows the table; for a chart.
	Note string `json:"note,omitempty"`
}

func (b Block) rounds() int {
	least := 0
	for _, r := range b.Results {
		if least == 0 || r.Rounds < least {
			least = r.Rounds
		}
	}
	return least
}

func openMarker(part string) string  { return "<!-- bench:" + part + " -->" }
func closeMarker(part string) string { return "<!-- /bench:" + part + " -->" }

// markdown returns the block between its markers.
func (b Block) markdown() string {
	var out strings.Builder
	rounds := fmt.Sprintf("Medians of %d rounds.", b.rounds())
	if b.rounds() < minimumRounds {
		rounds = fmt.Sprintf("Medians of %d rounds; a conclusion needs %d.", b.rounds(), minimumRounds)
	}
	fmt.Fprintf(&out, "%s\n%s\n\n", openMarker(b.Part), wrap(b.Provenance.String()+" "+rounds+" "+b.Simulated))
	compared := false
	for _, r := range b.Results {
		compared = compared || r.Peer != 0
	}
	if compared {
		out.WriteString("| measurement | ours | alternative | ratio | goal |\n|---|---|---|---|---|\n")
	} else {
		out.WriteString("| measurement | value | goal |\n|---|---|---|\n")
	}
	for _, r := range b.Results {
		cells := []string{r.Name, amount(r.Ours, r.Unit)}
		switch {
		case compared && r.Peer != 0:
			cells = append(cells, amount(r.Peer, r.Unit), fmt.Sprintf("%.2f", r.Ratio))
		case compared:
			cells = append(cells, "", "")
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(append(cells, r.goal()), " | "))
	}
	if b.Note != "" {
		fmt.Fprintf(&out, "\n%s\n", b.Note)
	}
	out.WriteString(closeMarker(b.Part) + "\n")
	return out.String()
}

// goal returns the goal and whether it is met.
func (r Result) goal() string {
	if r.Goal == 0 {
		return ""
	}
	goal := fmt.Sprintf("%.3g", r.Goal)
	if r.Peer == 0 {
		goal = amount(r.Goal, r.Unit)
	}
	if r.met() {
		return goal + ", met"
	}
	return goal + ", **missed**"
}

// amount returns a value with two or three digits and its unit.
func amount(value float64, unit string) string {
	digits := 2
	switch {
	case value >= 100:
		digits = 0
	case value >= 10:
		digits = 1
	case value < 0.1:
		digits = 3
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, value, unit))
}

// wrap breaks a paragraph into lines of up to 100 columns.
func wrap(text string) string {
	const columns = 100
	var out strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		switch {
		case width == 0:
		case width+1+len(word) > columns:
			out.WriteString("\n")
			width = 0
		default:
			out.WriteString(" ")
			width++
		}
		out.WriteString(word)
		width += len(word)
	}
	return out.String()
}

// replaceBlock replaces the block of the same part in a document.
func replaceBlock(document string, b Block) (string, error) {
	before, rest, opened := strings.Cut(document, openMarker(b.Part)+"\n")
	_, after, closed := strings.Cut(rest, closeMarker(b.Part)+"\n")
	if !opened || !closed {
		return "", fmt.Errorf("the document has no block %q; add the lines %s and %s", b.Part, openMarker(b.Part), closeMarker(b.Part))
	}
	return before + b.markdown() + after, nil
}

// rewrite replaces the block in the file.
func rewrite(path string, b Block) error {
	if b.rounds() < minimumRounds {
		return fmt.Errorf("%s: documented results need %d rounds, and there are %d; omit -short", b.Part, minimumRounds, b.rounds())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	document, err := replaceBlock(string(data), b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(document), 0o644)
}
