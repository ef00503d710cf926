package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// targetLabels are the labels that Prometheus adds to the series of a target.
var targetLabels = []string{"job", "instance", "namespace", "pod", "node"}

// enumerations are labels whose values are fixed sets, all of which are in a scrape.
var enumerations = []string{"phase", "state", "reason", "rule", "layer", "verdict", "window"}

// base returns the name of the family of a series, without the suffix of a histogram.
func base(all map[string]*dto.MetricFamily, name string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if family := strings.TrimSuffix(name, suffix); family != name && all[family].GetType() == dto.MetricType_HISTOGRAM {
			return family
		}
	}
	return name
}

// values returns the values of a label of a family, and whether it has the label.
func values(family *dto.MetricFamily, label string) (all []string, found bool) {
	for _, m := range family.GetMetric() {
		for _, pair := range m.GetLabel() {
			if pair.GetName() == label {
				all, found = append(all, pair.GetValue()), true
			}
		}
	}
	return all, found || label == "le" && family.GetType() == dto.MetricType_HISTOGRAM
}

// checkExpression checks that each metric of an expression exists, with the labels and the values
// that select its series.
func checkExpression(t *testing.T, expression string, records []string) {
	t.Helper()
	all := scrape(t)
	expr, err := promQL.ParseExpr(expression)
	require.NoError(t, err, expression)
	var known []string // labels of the metrics of the expression
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		if selector.Name == "up" || slices.Contains(records, selector.Name) {
			known = append(known, "class")
			return nil
		}
		family := all[base(all, selector.Name)]
		if !assert.NotNil(t, family, "no program has the metric %s, in: %s", selector.Name, expression) {
			return nil
		}
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				known = append(known, pair.GetName())
			}
		}
		for _, matcher := range selector.LabelMatchers {
			checkMatcher(t, family, matcher, expression)
		}
		return nil
	})
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if aggregate, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range aggregate.Grouping {
				if label != "le" && !slices.Contains(targetLabels, label) {
					assert.Contains(t, known, label, "grouping in: %s", expression)
				}
			}
		}
		return nil
	})
}

func checkMatcher(t *testing.T, family *dto.MetricFamily, matcher *labels.Matcher, expression string) {
	t.Helper()
	if matcher.Name == model.MetricNameLabel || slices.Contains(targetLabels, matcher.Name) {
		return
	}
	have, found := values(family, matcher.Name)
	assert.True(t, found, "%s has no label %s, in: %s", family.GetName(), matcher.Name, expression)
	if !slices.Contains(enumerations, matcher.Name) || matcher.Type == labels.MatchNotEqual || matcher.Type == labels.MatchNotRegexp {
		return
	}
	if strings.Contains(family.GetName(), "oldest") {
		return // only the values that occur
	}
	for _, value := range strings.Split(matcher.Value, "|") {
		assert.Contains(t, have, value, "%s never has this value of %s, in: %s", family.GetName(), matcher.Name, expression)
	}
}

func recordNames(t *testing.T) (names []string) {
	t.Helper()
	for _, rule := range allRules(t) {
		if rule.Record != "" {
			names = append(names, rule.Record)
		}
	}
	return names
}

func TestRulesUseMetricsThatExist(t *testing.T) {
	for _, rule := range allRules(t) {
		checkExpression(t, rule.Expr, recordNames(t))
	}
}

type panel struct {
	ID      int
	Title   string
	Type    string
	GridPos struct{ X, Y, W, H int }
	Targets []struct{ Expr, LegendFormat string }
}

var variable = regexp.MustCompile(`\{\{(\w+)\}\}`)

func TestDashboardUsesMetricsThatExist(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(artifacts, "dashboard.json"))
	require.NoError(t, err)
	var dashboard struct {
		UID, Title string
		Panels     []panel
	}
	require.NoError(t, json.Unmarshal(source, &dashboard))
	require.NotEmpty(t, dashboard.UID)
	ids := map[int]bool{}
	expressions := 0
	for _, panel := range dashboard.Panels {
		assert.False(t, ids[panel.ID], "panel %d twice", panel.ID)
		ids[panel.ID] = true
		assert.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, 24, panel.Title)
		if panel.Type != "row" {
			assert.NotEmpty(t, panel.Targets, panel.Title)
		}
		for _, target := range panel.Targets {
			expressions++
			expression := strings.NewReplacer("$__rate_interval", "5m", "$class", ".*").Replace(target.Expr)
			checkExpression(t, expression, recordNames(t))
			for _, match := range variable.FindAllStringSubmatch(target.LegendFormat, -1) {
				assert.Contains(t, expression+strings.Join(targetLabels, " ")+" phase reason class", match[1], "legend of %s", panel.Title)
			}
		}
	}
	assert.Greater(t, expressions, 30)
}
