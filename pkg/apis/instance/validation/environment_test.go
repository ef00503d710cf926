package validation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/internal/check/checktest"
)

func TestValidateEnvironment(t *testing.T) {
	secret := func(name, key string) *instance.EnvVarSource {
		return &instance.EnvVarSource{SecretKeyRef: &instance.KeySelector{Name: name, Key: key}}
	}
	variable := func(v instance.EnvVar) func(*instance.MacOSInstanceSpec) {
		return func(s *instance.MacOSInstanceSpec) { s.Env = []instance.EnvVar{v} }
	}
	source := func(from instance.EnvFromSource) func(*instance.MacOSInstanceSpec) {
		return func(s *instance.MacOSInstanceSpec) { s.EnvFrom = []instance.EnvFromSource{from} }
	}
	literals := func(bytes int) func(*instance.MacOSInstanceSpec) {
		return variable(instance.EnvVar{Name: "A", Value: strings.Repeat("v", bytes-1)})
	}
	variables := func(n int) func(*instance.MacOSInstanceSpec) {
		return func(s *instance.MacOSInstanceSpec) {
			s.Env = nil
			for i := range n {
				s.Env = append(s.Env, instance.EnvVar{Name: fmt.Sprintf("A%d", i)})
			}
		}
	}
	for name, tt := range map[string]struct {
		change func(*instance.MacOSInstanceSpec)
		want   []string
	}{
		"a name with dots": {variable(instance.EnvVar{Name: "a.b-c d"}), nil},
		"no name":          {variable(instance.EnvVar{}), []string{"spec.env[0].name: Required"}},
		"a name with =":    {variable(instance.EnvVar{Name: "A=B"}), []string{"spec.env[0].name: Invalid"}},
		"a name in Greek":  {variable(instance.EnvVar{Name: "\u0391"}), []string{"spec.env[0].name: Invalid"}},
		"a long name":      {variable(instance.EnvVar{Name: strings.Repeat("A", 1025)}), []string{"spec.env[0].name: Too long"}},
		"a zero byte":      {variable(instance.EnvVar{Name: "A", Value: "s3cret\x00"}), []string{"spec.env[0].value: Invalid value: \"(not shown)\": must not contain a zero byte"}},
		"binary":           {variable(instance.EnvVar{Name: "A", Value: "s3cret\xff"}), []string{"spec.env[0].value: Invalid value: \"(not shown)\": must be valid UTF-8"}},
		"twice": {func(s *instance.MacOSInstanceSpec) {
			s.Env = []instance.EnvVar{{Name: "A", Value: "s3cret"}, {Name: "A"}}
		}, []string{"spec.env[1].name: Duplicate value: \"A\""}},
		"256 variables":       {variables(256), nil},
		"257 variables":       {variables(257), []string{"spec.env: Too many: 257: must have at most 256 items"}},
		"64 KiB":              {literals(64 << 10), nil},
		"more":                {literals(64<<10 + 1), []string{"spec.env: Invalid value: \"(not shown)\": must have at most 65536 bytes of names and values; use envFrom with a ConfigMap for more"}},
		"1 MiB":               {literals(1 << 20), []string{"spec.env: Invalid value: \"(not shown)\": must have at most 65536 bytes"}},
		"value and source":    {variable(instance.EnvVar{Name: "A", Value: "s3cret", ValueFrom: secret("ci", "token")}), []string{"spec.env[0].valueFrom: Invalid value: \"\": cannot be used together with value"}},
		"an empty source":     {variable(instance.EnvVar{Name: "A", ValueFrom: &instance.EnvVarSource{}}), []string{"spec.env[0].valueFrom: Invalid value: \"\": must have exactly one of configMapKeyRef and secretKeyRef"}},
		"two sources":         {variable(instance.EnvVar{Name: "A", ValueFrom: &instance.EnvVarSource{SecretKeyRef: &instance.KeySelector{Name: "ci", Key: "a"}, ConfigMapKeyRef: &instance.KeySelector{Name: "ci", Key: "a"}}}), []string{"spec.env[0].valueFrom: Invalid"}},
		"no Secret":           {variable(instance.EnvVar{Name: "A", ValueFrom: secret("", "token")}), []string{"spec.env[0].valueFrom.secretKeyRef.name: Required"}},
		"another's Secret":    {variable(instance.EnvVar{Name: "A", ValueFrom: secret("globex/ci", "token")}), []string{"spec.env[0].valueFrom.secretKeyRef.name: Invalid"}},
		"no key":              {variable(instance.EnvVar{Name: "A", ValueFrom: secret("ci", "")}), []string{"spec.env[0].valueFrom.secretKeyRef.key: Required"}},
		"a key with a slash":  {variable(instance.EnvVar{Name: "A", ValueFrom: secret("ci", "a/b")}), []string{"spec.env[0].valueFrom.secretKeyRef.key: Invalid"}},
		"a long key":          {variable(instance.EnvVar{Name: "A", ValueFrom: secret("ci", strings.Repeat("a", 254))}), []string{"spec.env[0].valueFrom.secretKeyRef.key: Too long"}},
		"from nothing":        {source(instance.EnvFromSource{}), []string{"spec.envFrom[0]: Invalid value: \"\": must have exactly one of configMapRef and secretRef"}},
		"from both":           {source(instance.EnvFromSource{SecretRef: &instance.EnvSource{Name: "a"}, ConfigMapRef: &instance.EnvSource{Name: "a"}}), []string{"spec.envFrom[0]: Invalid"}},
		"from a nameless one": {source(instance.EnvFromSource{ConfigMapRef: &instance.EnvSource{}}), []string{"spec.envFrom[0].configMapRef.name: Required"}},
		"from another's":      {source(instance.EnvFromSource{SecretRef: &instance.EnvSource{Name: "../a"}}), []string{"spec.envFrom[0].secretRef.name: Invalid"}},
		"a prefix with =":     {source(instance.EnvFromSource{Prefix: "A=", SecretRef: &instance.EnvSource{Name: "a"}}), []string{"spec.envFrom[0].prefix: Invalid"}},
		"from 33":             {func(s *instance.MacOSInstanceSpec) { s.EnvFrom = make([]instance.EnvFromSource, 33) }, []string{"spec.envFrom: Too many: 33: must have at most 32 items"}},
		"without a script": {func(s *instance.MacOSInstanceSpec) { s.StartupScript = "" }, []string{
			"spec.env: Forbidden: only the startup script gets the environment", "spec.envFrom: Forbidden: only the startup script gets the environment",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			i := validInstance()
			tt.change(&i.Spec)
			errs := ValidateMacOSInstance(i)
			checktest.Errors(t, tt.want, errs)
			if len(errs) > 0 {
				assert.NotContains(t, errs.ToAggregate().Error(), "s3cret")
			}
		})
	}
}
