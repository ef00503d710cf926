package certissuer

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

const namespace = "macrack-system"

type fixture struct {
	*Issuer
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	clock   *clocktesting.FakeClock
}

func newFixture(issue ...Issue) *fixture {
	var services []runtime.Object
	for _, name := range apiServices {
		services = append(services, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name}, "spec": map[string]any{},
		}})
	}
	f := &fixture{
		client: fake.NewClientset(),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{APIServiceResource: "APIServiceList"}, services...),
		clock: clocktesting.NewFakeClock(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)),
	}
	f.Issuer = &Issuer{
		Secrets: f.client.CoreV1().Secrets(namespace), APIServices: f.dynamic.Resource(APIServiceResource),
		Namespace: namespace, Issue: issue, Clock: f.clock, Interval: time.Minute,
	}
	return f
}

func (f *fixture) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	secret, err := f.Secrets.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return secret
}

func (f *fixture) caBundle(t *testing.T, name string) string {
	t.Helper()
	service, err := f.APIServices.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	text, _, err := unstructured.NestedString(service.Object, "spec", "caBundle")
	require.NoError(t, err)
	bundle, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	return string(bundle)
}

func TestIssue(t *testing.T) {
	f := newFixture(Serving, Etcd)
	require.NoError(t, f.Reconcile(t.Context()))
	for _, name := range []string{servingSecret, "macrack-etcd-tls", "macrack-etcd-client-tls"} {
		secret := f.secret(t, name)
		_, err := tls.X509KeyPair(secret.Data[certKey], secret.Data[keyKey])
		assert.NoError(t, err, name)
		assert.NotEmpty(t, secret.Data[caKey], name)
		assert.Len(t, secret.Data, 3, "no key of the authority")
	}
	for _, name := range apiServices {
		assert.Equal(t, string(f.secret(t, servingSecret).Data[caKey]), f.caBundle(t, name))
	}
	assert.NotEqual(t, f.secret(t, servingSecret).Data[caKey], f.secret(t, "macrack-etcd-tls").Data[caKey], "two authorities")

	f.client.ClearActions()
	f.dynamic.ClearActions()
	require.NoError(t, f.Reconcile(t.Context()))
	for _, action := range append(f.client.Actions(), f.dynamic.Actions()...) {
		assert.Equal(t, "get", action.GetVerb(), "a second check writes nothing")
	}
}

func TestRenewal(t *testing.T) {
	f := newFixture(Serving, Etcd)
	require.NoError(t, f.Reconcile(t.Context()))
	before := f.secret(t, servingSecret).Data
	f.clock.Step(61 * 24 * time.Hour)
	require.NoError(t, f.Reconcile(t.Context()))
	after := f.secret(t, servingSecret).Data
	assert.NotEqual(t, before[certKey], after[certKey])
	assert.NotEqual(t, before[keyKey], after[keyKey])
	assert.Equal(t, before[caKey], after[caKey])

	// A new authority is trusted in all places before it signs.
	f.clock.Step(8 * year)
	require.NoError(t, f.Reconcile(t.Context()))
	successor := f.secret(t, "macrack-serving-ca").Data[nextCertKey]
	require.NotEmpty(t, successor)
	assert.Contains(t, string(f.secret(t, servingSecret).Data[caKey]), string(successor))
	assert.Contains(t, f.caBundle(t, apiServices[0]), string(successor))
	assert.Equal(t, before[caKey], f.secret(t, "macrack-serving-ca").Data[certKey], "the first authority signs")
}

// A deleted Secret of an authority, or of a certificate, and a removed caBundle are made again.
func TestRepair(t *testing.T) {
	f := newFixture(Serving, Etcd)
	require.NoError(t, f.Reconcile(t.Context()))
	before := f.secret(t, servingSecret).Data
	require.NoError(t, f.Secrets.Delete(t.Context(), "macrack-serving-ca", metav1.DeleteOptions{}))
	require.NoError(t, f.Secrets.Delete(t.Context(), "macrack-etcd-tls", metav1.DeleteOptions{}))
	require.NoError(t, f.Reconcile(t.Context()))
	after := f.secret(t, servingSecret).Data
	assert.NotEqual(t, before[caKey], after[caKey])
	assert.Equal(t, string(after[caKey]), f.caBundle(t, apiServices[3]))
	f.secret(t, "macrack-etcd-tls")
}

// Certificates of others are followed, and not replaced.
func TestExternal(t *testing.T) {
	f := newFixture()
	require.ErrorContains(t, f.Reconcile(t.Context()), servingSecret)
	a, err := newAuthority("theirs", f.clock.Now())
	require.NoError(t, err)
	data, err := a.encode()
	require.NoError(t, err)
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: servingSecret}, Data: data}
	_, err = f.Secrets.Create(t.Context(), theirs, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, f.Reconcile(t.Context()))
	assert.Equal(t, string(data[caKey]), f.caBundle(t, apiServices[0]))

	f.Issue = []Issue{Serving}
	err = f.Reconcile(t.Context())
	assert.ErrorContains(t, err, "was not made by macrack-certificates; delete it")
	assert.Equal(t, data, f.secret(t, servingSecret).Data)
}

func TestUnreadable(t *testing.T) {
	f := newFixture(Serving)
	require.NoError(t, f.Reconcile(t.Context()))
	ca := f.secret(t, "macrack-serving-ca")
	ca.Data[keyKey] = f.secret(t, servingSecret).Data[keyKey]
	_, err := f.Secrets.Update(t.Context(), ca, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.ErrorContains(t, f.Reconcile(t.Context()), "restore the Secret, or delete it")
}

// Run retries soon after a failure: at first, the APIServices do not exist yet.
func TestRun(t *testing.T) {
	f := newFixture(Serving)
	require.NoError(t, f.APIServices.Delete(t.Context(), apiServices[0], metav1.DeleteOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	require.Eventually(t, f.clock.HasWaiters, 10*time.Second, time.Millisecond)
	_, err := f.APIServices.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": apiServices[0]},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.clock.Step(time.Second)
	require.Eventually(t, func() bool { return f.caBundle(t, apiServices[0]) != "" }, 10*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	_, err = f.Secrets.Get(t.Context(), "macrack-etcd-ca", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "not issued")
}
