package monitoring

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of docs/monitoring.md")

const (
	document = "../../docs/monitoring.md"
	begin    = "<!-- begin: written by go test -C test/monitoring -run Docs -update . -->\n"
	end      = "<!-- end -->\n"
)

// programs are the programs in the order of the document, with a prefix that identifies the metrics
// of each, and the metrics that the prefix misses.
var programs = []struct {
	name string
	has  func(metric string) bool
}{
	{"Agents", func(metric string) bool { return strings.HasPrefix(metric, "macrack_agent_") }},
	{"Agents and macrack-apiserver", func(metric string) bool { return strings.HasPrefix(metric, "macrack_certificate_") }},
	{"macrack-apiserver", func(metric string) bool {
		return slices.ContainsFunc([]string{"macrack_txn_", "macrack_storage_", "macrack_rejections_", "macrack_compliance_", "macrack_replica_"},
			func(prefix string) bool { return strings.HasPrefix(metric, prefix) })
	}},
	{"macrack-controllers", func(string) bool { return true }},
}

// reference returns the tables of the metrics, from a scrape.
func reference(all map[string]*dto.MetricFamily) string {
	tables := make([]string, len(programs))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(name, "macrack_") {
			continue
		}
		for i, program := range programs {
			if program.has(name) {
				tables[i] += entry(all[name])
				break
			}
		}
	}
	var text strings.Builder
	for i, program := range programs {
		fmt.Fprintf(&text, "### %s\n\n%s", program.name, tables[i])
	}
	return text.String()
}

func entry(family *dto.MetricFamily) string {
	var names []string
	for _, pair := range family.GetMetric()[0].GetLabel() {
		names = append(names, pair.GetName())
	}
	labels := ""
	if len(names) > 0 {
		labels = "{" + strings.Join(names, ", ") + "}"
	}
	help := strings.TrimPrefix(family.GetHelp(), "[ALPHA] ")
	return wrap(fmt.Sprintf("- `%s%s` (%s): %s", family.GetName(), labels, strings.ToLower(family.GetType().String()), help))
}

// wrap wraps an item of a list at 100 columns. A name with its labels stays on one line.
func wrap(item string) string {
	name, rest, _ := strings.Cut(item, "` ")
	line, text := name+"`", ""
	for _, word := range strings.Fields(rest) {
		if len(line)+1+len(word) > 100 {
			text, line = text+line+"\n", " "
		}
		line += " " + word
	}
	return text + line + "\n"
}

// The tables of the document are those of the code. After a change, run the test with -update.
func TestDocs(t *testing.T) {
	source, err := os.ReadFile(document)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(source), begin)
	require.True(t, found, "%s has no line %q", document, begin)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found, "%s has no line %q", document, end)
	want := before + begin + "\n" + strings.ReplaceAll(reference(scrape(t)), "\n### ", "\n\n### ") + "\n" + end + after
	want = strings.ReplaceAll(want, "\n\n\n", "\n\n")
	if *update {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
		return
	}
	assert.Equal(t, want, string(source))
}

// Each alert is in the document.
func TestDocsListAlerts(t *testing.T) {
	source, err := os.ReadFile(document)
	require.NoError(t, err)
	for _, rule := range allRules(t) {
		name := rule.Alert
		if name == "" {
			name = rule.Record
		}
		assert.Contains(t, string(source), "`"+name+"`")
	}
}
