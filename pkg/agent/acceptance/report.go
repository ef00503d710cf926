package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"macrack.io/macrack/pkg/vm/contract"
)

// Names of the files of a report.
const (
	reportJSON     = "report.json"
	reportMarkdown = "report.md"
)

// Report is the result of a run. It can be attached to a bug report: it has no serial number, no
// name of a host and no key.
type Report struct {
	// Versions are those of the programs, by name.
	Versions map[string]string `json:"versions"`
	// Host describes the Mac.
	Host    map[string]string `json:"host"`
	Started time.Time         `json:"started"`
	Results []Result          `json:"results"`
}

// ReadReport reads the report in a directory; an empty one without a file.
func ReadReport(dir string) (*Report, error) {
	data, err := os.ReadFile(filepath.Join(dir, reportJSON))
	if errors.Is(err, fs.ErrNotExist) {
		return &Report{}, nil
	}
	if err != nil {
		return nil, err
	}
	report := &Report{}
	if err := json.Unmarshal(data, report); err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file to start again", filepath.Join(dir, reportJSON), err)
	}
	return report, nil
}

// Write writes the report to a directory, as JSON and as Markdown.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := contract.WriteJSON(filepath.Join(dir, reportJSON), r); err != nil {
		return err
	}
	return contract.WriteFile(filepath.Join(dir, reportMarkdown), []byte(r.Markdown()))
}

// Failed returns the IDs of the checks that failed.
func (r *Report) Failed() []string {
	var failed []string
	for _, result := range r.Results {
		if result.Outcome == Fail {
			failed = append(failed, result.ID)
		}
	}
	return failed
}

func (r *Report) find(id string) *Result {
	for i := range r.Results {
		if r.Results[i].ID == id {
			return &r.Results[i]
		}
	}
	return nil
}

func (r *Report) set(result Result) {
	if old := r.find(result.ID); old != nil {
		*old = result
		return
	}
	r.Results = append(r.Results, result)
}

// Markdown returns the report for people.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# MacRack acceptance\n\nStarted %s.\n\n", r.Started.UTC().Format(time.RFC3339))
	for _, facts := range []map[string]string{r.Versions, r.Host} {
		for _, name := range slices.Sorted(maps.Keys(facts)) {
			fmt.Fprintf(&b, "- %s: %s\n", name, inline(facts[name]))
		}
	}
	counts := map[Outcome]int{}
	for _, result := range r.Results {
		counts[result.Outcome]++
	}
	b.WriteString("\n| outcome | checks |\n|---|---|\n")
	for _, outcome := range []Outcome{Pass, Fail, Ask, Pending, Skip} {
		fmt.Fprintf(&b, "| %s | %d |\n", outcome, counts[outcome])
	}
	b.WriteString("\n| outcome | check | seconds | found | measured |\n|---|---|---|---|---|\n")
	for _, result := range r.Results {
		var measured []string
		for _, name := range slices.Sorted(maps.Keys(result.Measured)) {
			measured = append(measured, name+": "+result.Measured[name])
		}
		fmt.Fprintf(&b, "| %s | %s | %.1f | %s | %s |\n", result.Outcome, result.ID, result.Seconds, inline(result.Message), inline(strings.Join(measured, "; ")))
	}
	for _, result := range r.Results {
		if result.Log != "" {
			// Four spaces make any text a code block, whatever a guest prints.
			fmt.Fprintf(&b, "\n## Log of %s\n\n    %s\n", result.ID, strings.ReplaceAll(strings.TrimSpace(result.Log), "\n", "\n    "))
		}
	}
	return b.String()
}

// inline makes text fit into a cell of a table.
func inline(text string) string {
	return strings.NewReplacer("\n", " ", "\r", " ", "|", `\|`).Replace(text)
}
