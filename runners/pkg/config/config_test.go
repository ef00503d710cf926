package config

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"

	"macrack.io/macrack/runners/pkg/floor"
)

func TestFullConfiguration(t *testing.T) {
	config, err := Load("testdata/full.yaml")
	require.NoError(t, err)
	require.Len(t, config.Sets, 3)
	assert.Equal(t, floor.Limits{
		Min: 1, Max: 8, PerLease: 2, Warm: 2, GrowAfter: 2 * time.Minute, KeepIdle: 90 * time.Minute, DecideBefore: 10 * time.Minute,
	}, config.Sets[0].Limits())
	ios := config.Sets[0]
	assert.Equal(t, GitHub{
		URL: "https://github.com/acme", ScaleSetName: "macos", RunnerGroup: "ios", SecretName: "github-app",
		ProxyURL: "http://proxy.example.com:3128", RunnerPath: "actions-runner/run.sh",
	}, *ios.GitHub)
	assert.Equal(t, []rackv1alpha1.LeaseCache{
		{Name: "derived-data", SizeLimit: scalar.MustParse("50Gi")}, {Name: "homebrew", SizeLimit: scalar.MustParse("10Gi")},
	}, ios.Leases.Caches)
	assert.Equal(t, []instancev1alpha1.InstanceCache{{Name: "homebrew", ReadOnly: true}, {Name: "derived-data"}}, ios.Instances.Caches)
	assert.Equal(t, 12*time.Hour, ios.Instances.MaxAge.Duration)
	assert.Equal(t, 2*time.Hour, ios.Instances.Timeout.Duration)
	assert.NotNil(t, config.Sets[1].GitLab)
	assert.Equal(t, "token", config.Sets[2].Script.Env[1].ValueFrom.SecretKeyRef.Key)
	assert.Equal(t, floor.Limits{
		Max: 1, PerLease: 1, Warm: 1, Steady: true, GrowAfter: time.Minute, KeepIdle: 30 * time.Minute, DecideBefore: 15 * time.Minute,
	}, config.Sets[2].Limits())
	assert.Equal(t, "buildkite", config.Sets[2].Script.EnvFrom[0].ConfigMapRef.Name)
}

// document returns a configuration of one set, with the given lines added to its parts.
func document(leases, instances, source string) string {
	return fmt.Sprintf(`apiVersion: runners.macrack.io/v1alpha1
kind: RunnersConfiguration
sets:
- name: ios
  leases: {max: 2%s}
  instances: {className: small, imageName: xcode%s}
  %s
`, leases, instances, source)
}

const github = "github: {url: https://github.com/acme, secretName: app}"

func TestDefaults(t *testing.T) {
	config, err := Parse([]byte(document("", "", github)))
	require.NoError(t, err)
	set := config.Sets[0]
	assert.Equal(t, floor.Limits{
		Max: 2, PerLease: 2, Warm: 1, GrowAfter: time.Minute, KeepIdle: 30 * time.Minute, DecideBefore: 15 * time.Minute,
	}, set.Limits())
	assert.Equal(t, []string{"xcode"}, set.Leases.PrefetchImages)
	assert.Equal(t, 24*time.Hour, set.Instances.MaxAge.Duration)
	assert.Equal(t, 6*time.Hour, set.Instances.Timeout.Duration)
	assert.Equal(t, "ios", set.GitHub.ScaleSetName)
	assert.Equal(t, "Default", set.GitHub.RunnerGroup)
}

func TestZerosAreNotDefaulted(t *testing.T) {
	config, err := Parse([]byte(document(", growAfter: 0s, keepIdle: 0s, decideBefore: 0s, prefetchImages: []", ", warm: 0", github)))
	require.NoError(t, err)
	assert.Equal(t, floor.Limits{Max: 2, PerLease: 2}, config.Sets[0].Limits())
	assert.Empty(t, config.Sets[0].Leases.PrefetchImages)
}

func TestRefusals(t *testing.T) {
	script := func(rest string) string { return document("", "", "script: {script: run"+rest+"}") }
	for _, test := range []struct {
		name, document, want string
	}{
		{"empty", "", "no configuration"},
		{"another version", strings.Replace(document("", "", github), "v1alpha1", "v1", 1), `use "runners.macrack.io/v1alpha1"`},
		{"another kind", strings.Replace(document("", "", github), "RunnersC", "C", 1), `and "RunnersConfiguration"`},
		{"two documents", document("", "", github) + "---\n" + document("", "", github), "more than one document"},
		{"no sets", "apiVersion: runners.macrack.io/v1alpha1\nkind: RunnersConfiguration\n", "sets: Required value"},
		{"a set twice", document("", "", github) + strings.SplitAfter(document("", "", github), "sets:\n")[1], `sets[1].name: Duplicate value: "ios"`},
		{"no name", strings.Replace(document("", "", github), "ios", `""`, 1), "sets[0].name: Invalid value"},
		{"a long name", strings.Replace(document("", "", github), "ios", strings.Repeat("a", 41), 1), "sets[0].name: Too long"},
		{"an unknown field", document(", maximum: 2", "", github), `unknown field "sets[0].leases.maximum"`},
		{"a field in another case", document("", ", perlease: 1", github), `unknown field "sets[0].instances.perlease"`},
		{"a field twice", document(", max: 3", "", github), `key "max" already set`},
		{"a text for a number", document(", min: one", "", github), "cannot unmarshal"},
		{"no duration", document(", keepIdle: 1 hour", "", github), "unknown unit"},
		{"max", strings.Replace(document("", "", github), "max: 2", "max: 0", 1), "leases.max: Invalid value: 0: must be 1 or more"},
		{"min above max", document(", min: 3", "", github), "leases.min: Invalid value: 3: must be from 0 to max"},
		{"min below 0", document(", min: -1", "", github), "leases.min: Invalid value"},
		{"the class of leases", document(", className: Base", "", github), "leases.className: Invalid value"},
		{"an image twice", document(", prefetchImages: [a, a]", "", github), "leases.prefetchImages[1]: Duplicate value"},
		{"too many images", document(", prefetchImages: [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r]", "", github), "leases.prefetchImages: Too many"},
		{"growAfter", document(", growAfter: -1s", "", github), "leases.growAfter: Invalid value"},
		{"keepIdle", document(", keepIdle: -1s", "", github), "leases.keepIdle: Invalid value"},
		{"decideBefore below 0", document(", decideBefore: -1s", "", github), "leases.decideBefore: Invalid value"},
		{"decideBefore above a day", document(", decideBefore: 24h", "", github), "must be less than 24h"},
		{"no class of instances", strings.Replace(document("", "", github), "className: small, ", "", 1), "instances.className: Required value"},
		{"no image", strings.Replace(document("", "", github), ", imageName: xcode", "", 1), "instances.imageName: Required value"},
		{"perLease", document("", ", perLease: 3", github), "instances.perLease: Invalid value: 3: must be 1 or 2"},
		{"warm below 0", document("", ", warm: -1", github), "instances.warm: Invalid value"},
		{"warm above all slots", document("", ", warm: 5", github), "instances.warm: Invalid value: 5: must be from 0 to perLease times max"},
		{"maxAge", document("", ", maxAge: 59s", github), "instances.maxAge: Invalid value"},
		{"timeout", document("", ", timeout: 0s", github), "instances.timeout: Invalid value"},
		{"no source", document("", "", ""), "set one of github, gitlab and script"},
		{"two sources", document("", "", github+"\n  gitlab: {}"), "set only one of github, gitlab and script"},
		{"no URL", document("", "", "github: {secretName: app}"), "github.url: Required value"},
		{"a URL without encryption", document("", "", "github: {url: 'http://github.com/acme', secretName: app}"), "github.url: Unsupported value"},
		{"a URL without a path", document("", "", "github: {url: 'https://github.com/', secretName: app}"), "must have the path"},
		{"no Secret", document("", "", "github: {url: 'https://github.com/acme'}"), "github.secretName: Required value"},
		{"a proxy", document("", "", "github: {url: 'https://github.com/acme', secretName: app, proxyURL: proxy}"), "github.proxyURL: Invalid value"},
		{"a password", document("", "", "github: {url: 'https://github.com/acme', secretName: app, proxyURL: 'http://me:secret@proxy'}"), "must not contain a user or a password"},
		{"a certificate", document("", "", "github: {url: 'https://github.com/acme', secretName: app, caBundle: x}"), "github.caBundle: Invalid value"},
		{"a path with a command", document("", "", "github: {url: 'https://github.com/acme', secretName: app, runnerPath: 'a; b'}"), "github.runnerPath: Invalid value"},
		{"a long startup script", document("", "", "github: {url: 'https://github.com/acme', secretName: app, startupScript: "+strings.Repeat("a", 61441)+"}"), "github.startupScript: Too long"},
		{"a scale set twice", document("", "", github) + strings.Replace(strings.SplitAfter(document("", "", "github: {url: 'https://github.com/Acme/', secretName: other, scaleSetName: IOS}"), "sets:\n")[1], "ios", "ios-2", 1), `sets[1].github.scaleSetName: Duplicate value: "IOS"`},
		{"a setting of gitlab", document("", "", "gitlab: {url: x}"), `unknown field "sets[0].gitlab.url"`},
		{"no script", document("", "", "script: {}"), "script.script: Required value"},
		{"a long script", document("", "", "script: {script: "+strings.Repeat("a", 65537)+"}"), "script.script: Too long"},
		{"a variable without a name", script(", env: [{value: a}]"), "env[0].name: Invalid value"},
		{"a variable twice", script(", env: [{name: A}, {name: A}]"), "env[1].name: Duplicate value"},
		{"a variable with two values", script(", env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: a, key: b}}}]"), "set only one of value and valueFrom"},
		{"a variable from elsewhere", script(", env: [{name: A, valueFrom: {fieldRef: {fieldPath: a}}}]"), `unknown field "sets[0].script.env[0].valueFrom.fieldRef"`},
		{"a variable from no source", script(", env: [{name: A, valueFrom: {}}]"), "set one of secretKeyRef and configMapKeyRef"},
		{"variables from nowhere", script(", envFrom: [{prefix: A}]"), "set one of secretRef and configMapRef"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.document))
			require.Error(t, err)
			assert.Contains(t, err.Error(), test.want)
			assert.NotContains(t, err.Error(), "secret@")
		})
	}
}

func TestAllErrorsAreReported(t *testing.T) {
	_, err := Parse([]byte(document(", min: 3", ", perLease: 3", "")))
	require.Error(t, err)
	for _, want := range []string{"leases.min", "instances.perLease", "set one of"} {
		assert.Contains(t, err.Error(), want)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	file := t.TempDir() + "/runners.yaml"
	require.NoError(t, os.WriteFile(file, []byte("kind: Other"), 0o600))
	_, err := Load(file)
	assert.ErrorContains(t, err, file)
}
