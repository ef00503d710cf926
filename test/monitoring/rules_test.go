package monitoring

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	artifacts = "../../artifacts/monitoring"
	runbooks  = "docs/runbooks.md"
)

var promQL = parser.NewParser(parser.Options{})

// ruleFile writes the groups of the PrometheusRule as a rule file of Prometheus.
func ruleFile(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(artifacts, "rules.yaml"))
	require.NoError(t, err)
	var object struct{ Spec map[string]any }
	require.NoError(t, yaml.Unmarshal(source, &object))
	groups, err := yaml.Marshal(object.Spec)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, groups, 0o600))
	return path
}

// allRules returns the rules, checked as promtool does.
func allRules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(ruleFile(t), false, model.UTF8Validation, promQL, promslog.NewNopLogger())
	require.Empty(t, errs)
	for _, group := range groups.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// ruleTest is a test of one alert. Series have the notation of promtool.
type ruleTest struct {
	Alert  string            `json:"alert"`
	Series map[string]string `json:"series"`
	Checks []struct {
		At string `json:"at"`
		// Firing are the labels of the firing alerts, except alertname and severity.
		Firing []map[string]string `json:"firing"`
	} `json:"checks"`
}

func ruleTests(t *testing.T) (tests []ruleTest) {
	t.Helper()
	source, err := os.ReadFile("testdata/alerts.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(source, &tests))
	return tests
}

const evaluationInterval = time.Minute

// firing evaluates the rules until at, as promtool does, and returns the firing alerts of a name.
func firing(t *testing.T, test ruleTest, at time.Duration) []map[string]string {
	t.Helper()
	load := "load 1m\n"
	for series, values := range test.Series {
		load += "  " + series + " " + values + "\n"
	}
	suite, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	require.NoError(t, err)
	defer suite.Close()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), Appendable: suite.Storage(), Context: context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: promslog.NewNopLogger(), Parser: promQL,
	})
	groups, errs := manager.LoadGroups(evaluationInterval, labels.EmptyLabels(), "", nil, false, ruleFile(t))
	require.Empty(t, errs)
	epoch := time.Unix(0, 0).UTC()
	for now := epoch; !now.After(epoch.Add(at)); now = now.Add(evaluationInterval) {
		suite.WithSamplesTill(now, func(err error) {
			require.NoError(t, err)
			for _, group := range groups {
				group.Eval(suite.Context(), now)
				for _, rule := range group.Rules() {
					require.NoError(t, rule.LastError(), rule.Name())
				}
			}
		})
	}
	alerts := []map[string]string{}
	for _, group := range groups {
		for _, rule := range group.AlertingRules() {
			for _, alert := range rule.ActiveAlerts() {
				if rule.Name() == test.Alert && alert.State == rules.StateFiring {
					found := alert.Labels.Map()
					delete(found, "alertname")
					delete(found, "severity")
					alerts = append(alerts, found)
					assert.NotContains(t, alert.Annotations.Get("summary"), "<error", "the template of the summary")
				}
			}
		}
	}
	return alerts
}

func TestAlerts(t *testing.T) {
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range ruleTests(t) {
		t.Run(test.Alert, func(t *testing.T) {
			for _, check := range test.Checks {
				at, err := model.ParseDuration(check.At)
				require.NoError(t, err)
				want := append([]map[string]string{}, check.Firing...)
				assert.ElementsMatch(t, want, firing(t, test, time.Duration(at)), "after %s", check.At)
				fires[test.Alert] = fires[test.Alert] || len(want) > 0
				quiet[test.Alert] = quiet[test.Alert] || len(want) == 0
			}
		})
	}
	for _, rule := range allRules(t) {
		if rule.Alert != "" {
			assert.True(t, fires[rule.Alert], "testdata/alerts.yaml does not show that %s fires", rule.Alert)
			assert.True(t, quiet[rule.Alert], "testdata/alerts.yaml does not show when %s is quiet", rule.Alert)
		}
	}
}

// Each alert has a section in the runbooks, with commands.
func TestRunbooks(t *testing.T) {
	source, err := os.ReadFile("../../" + runbooks)
	require.NoError(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(source), "\n### ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		sections[title] = text
	}
	var alerts []string
	for _, rule := range allRules(t) {
		if rule.Alert == "" {
			continue
		}
		alerts = append(alerts, rule.Alert)
		assert.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"], rule.Alert)
		assert.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		assert.Equal(t, runbooks+"#"+strings.ToLower(rule.Alert), rule.Annotations["runbook"])
		if assert.Contains(t, sections, rule.Alert, "no section in "+runbooks) {
			assert.Contains(t, sections[rule.Alert], "kubectl ", "the section of %s says nothing to type", rule.Alert)
		}
	}
	for title := range sections {
		if strings.HasPrefix(title, "MacRack") {
			assert.True(t, slices.Contains(alerts, title), "%s describes %s, which is no alert", runbooks, title)
		}
	}
}
