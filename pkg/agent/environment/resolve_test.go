package environment

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

func fromSecret(name, key string) *instancev1alpha1.EnvVarSource {
	return &instancev1alpha1.EnvVarSource{SecretKeyRef: &instancev1alpha1.KeySelector{Name: name, Key: key}}
}

func fromConfigMap(name, key string) *instancev1alpha1.EnvVarSource {
	return &instancev1alpha1.EnvVarSource{ConfigMapKeyRef: &instancev1alpha1.KeySelector{Name: name, Key: key}}
}

func optional(source *instancev1alpha1.EnvVarSource) *instancev1alpha1.EnvVarSource {
	for _, ref := range []*instancev1alpha1.KeySelector{source.SecretKeyRef, source.ConfigMapKeyRef} {
		if ref != nil {
			ref.Optional = ptr.To(true)
		}
	}
	return source
}

func TestResolve(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "acme", Name: name} }
	large := strings.Repeat("s3cret", 100<<10)
	client := kubefake.NewClientset(
		&corev1.Secret{ObjectMeta: meta("ci"), Data: map[string][]byte{"token": []byte("s3cret"), "b.c": []byte("\xff"), "zero": nil}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "globex", Name: "globex"}, Data: map[string][]byte{"token": []byte("s3cret")}},
		&corev1.Secret{ObjectMeta: meta("binary"), Data: map[string][]byte{"token": []byte("s3\x00cret")}},
		&corev1.Secret{ObjectMeta: meta("large"), Data: map[string][]byte{"value": []byte(large), "small": []byte("1")}},
		&corev1.ConfigMap{ObjectMeta: meta("ci"), Data: map[string]string{"url": "https://example.com", "empty": ""}, BinaryData: map[string][]byte{"bin": {1}}},
	)
	client.PrependReactor("get", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == "forbidden" {
			return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "forbidden", errors.New("no relationship found between node and this object"))
		}
		return false, nil, nil
	})
	type vars = []instancev1alpha1.EnvVar
	type sources = []instancev1alpha1.EnvFromSource
	secretRef := func(name string) instancev1alpha1.EnvFromSource {
		return instancev1alpha1.EnvFromSource{SecretRef: &instancev1alpha1.EnvSource{Name: name}}
	}
	configMapRef := func(name string) instancev1alpha1.EnvFromSource {
		return instancev1alpha1.EnvFromSource{ConfigMapRef: &instancev1alpha1.EnvSource{Name: name}}
	}
	for _, tt := range []struct {
		name    string
		env     vars
		envFrom sources
		want    []string
		problem string
	}{
		{name: "none"},
		{name: "literals", env: vars{{Name: "A", Value: "$(B)"}, {Name: "B"}}, want: []string{"A=$(B)", "B="}},
		{name: "keys", env: vars{{Name: "T", ValueFrom: fromSecret("ci", "token")}, {Name: "U", ValueFrom: fromConfigMap("ci", "url")}}, want: []string{"T=s3cret", "U=https://example.com"}},
		{name: "an empty value", env: vars{{Name: "Z", ValueFrom: fromSecret("ci", "zero")}, {Name: "E", ValueFrom: fromConfigMap("ci", "empty")}}, want: []string{"Z=", "E="}},
		{
			name: "whole objects, in order, before the variables", env: vars{{Name: "S_token", Value: "override"}},
			envFrom: sources{{Prefix: "S_", SecretRef: &instancev1alpha1.EnvSource{Name: "ci"}}, configMapRef("ci")},
			want:    []string{"S_b.c=\xff", "S_token=s3cret", "S_zero=", "empty=", "url=https://example.com", "S_token=override"},
		},
		{
			name: "optional ones", env: vars{
				{Name: "A", ValueFrom: optional(fromSecret("none", "token"))}, {Name: "B", ValueFrom: optional(fromSecret("ci", "none"))}, {Name: "C", ValueFrom: optional(fromConfigMap("none", "a"))},
			},
			envFrom: sources{{SecretRef: &instancev1alpha1.EnvSource{Name: "none", Optional: ptr.To(true)}}},
		},
		{name: "a small key of a large Secret", env: vars{{Name: "A", ValueFrom: fromSecret("large", "small")}}, want: []string{"A=1"}},

		{name: "no Secret", env: vars{{Name: "A", Value: "1"}, {Name: "T", ValueFrom: fromSecret("none", "token")}}, problem: `SecretNotFound: Secret "none" does not exist in namespace "acme" (spec.env[1]); create it, or set optional`},
		{name: "no key", env: vars{{Name: "T", ValueFrom: fromSecret("ci", "none")}}, problem: `SecretNotFound: Secret "ci" has no key "none" (spec.env[0]); add it, or set optional`},
		{name: "no ConfigMap", envFrom: sources{secretRef("ci"), configMapRef("none")}, problem: `ConfigMapNotFound: ConfigMap "none" does not exist in namespace "acme" (spec.envFrom[1])`},
		{name: "binary data of a ConfigMap", env: vars{{Name: "A", ValueFrom: fromConfigMap("ci", "bin")}}, problem: `ConfigMapNotFound: ConfigMap "ci" has no key "bin"`},
		{name: "a Secret of another tenant", envFrom: sources{secretRef("globex")}, problem: `SecretNotFound: Secret "globex" does not exist in namespace "acme"`},
		{name: "forbidden", envFrom: sources{secretRef("forbidden")}, problem: `EnvironmentUnreadable: failed to read Secret "forbidden" (spec.envFrom[0]): secrets "forbidden" is forbidden`},
		{name: "a zero byte", env: vars{{Name: "T", ValueFrom: fromSecret("binary", "token")}}, problem: `EnvironmentInvalid: the value of "T" (spec.env[0]) contains a zero byte; encode it`},
		{name: "too large", envFrom: sources{configMapRef("ci"), secretRef("large")}, problem: `EnvironmentInvalid: the environment has more than 512 KiB up to "value" (spec.envFrom[1]), which is the limit`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			instance := &instancev1alpha1.MacOSInstance{ObjectMeta: meta("one"), Spec: instancev1alpha1.MacOSInstanceSpec{StartupScript: "true", Env: tt.env, EnvFrom: tt.envFrom}}
			got, err := resolve(t.Context(), client.CoreV1(), instance)
			if tt.problem != "" {
				var problem *Problem
				require.ErrorAs(t, err, &problem)
				assert.Contains(t, problem.Reason+": "+problem.Message, tt.problem)
				assert.NotContains(t, problem.Message, "s3cret")
				return
			}
			require.NoError(t, err)
			var all []string
			for _, v := range got {
				all = append(all, v.Name+"="+string(v.Value))
				assert.NotContains(t, fmt.Sprintf("%v %+v %#v", v, v, v), "s3cret")
			}
			assert.Equal(t, tt.want, all)
		})
	}
}
