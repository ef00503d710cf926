package certificatemetrics

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/metrics"
)

func TestCertificates(t *testing.T) {
	cert, key, err := certutil.GenerateSelfSignedCertKey("mac-1", nil, nil)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "tls.crt")
	require.NoError(t, os.WriteFile(path, append(key, cert...), 0o600))
	parsed, err := certutil.ParseCertsPEM(cert)
	require.NoError(t, err)

	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(New(map[string]Source{
		"file":    File(path),
		"pair":    TLS(func() (*tls.Certificate, error) { return &pair, nil }),
		"no leaf": TLS(func() (*tls.Certificate, error) { return &tls.Certificate{Certificate: pair.Certificate}, nil }),
		"missing": File(path + ".none"),
		"empty":   PEM(func() ([]byte, error) { return key, nil }),
		"unsigned": TLS(func() (*tls.Certificate, error) {
			return nil, errors.New("not signed yet")
		}),
	}))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]string{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := strings.TrimPrefix(family.GetName(), "macrack_certificate_") + " " + m.GetLabel()[0].GetValue()
			got[key] = strconv.FormatFloat(m.GetGauge().GetValue(), 'f', 0, 64)
		}
	}
	want := map[string]string{}
	for _, name := range []string{"file", "pair", "no leaf"} {
		want["not_before_timestamp_seconds "+name] = strconv.FormatInt(parsed[0].NotBefore.Unix(), 10)
		want["not_after_timestamp_seconds "+name] = strconv.FormatInt(parsed[0].NotAfter.Unix(), 10)
	}
	assert.Equal(t, want, got)
}
