package certissuer

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
)

const year = 365 * 24 * time.Hour

// With checks every five days for 30 years, each certificate is valid. Its authority is trusted
// for a year before and after it signs.
func TestRotation(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	a, err := newAuthority("test", now)
	require.NoError(t, err)
	r := request{commonName: "server", dnsNames: []string{"server.test"}, server: true}
	signers := map[string]bool{}
	trustedSince := map[string]time.Time{a.signing.cert.SerialNumber.String(): now.Add(-year)}
	var leaf *x509.Certificate
	for end := now.Add(30 * year); now.Before(end); now = now.Add(5 * 24 * time.Hour) {
		data, err := a.encode()
		require.NoError(t, err)
		a, err = decodeAuthority("test", data)
		require.NoError(t, err)
		require.NoError(t, a.advance(now))
		if leaf == nil || a.due(leaf, r, now) != "" {
			certPEM, keyPEM, err := a.issue(r, now)
			require.NoError(t, err)
			p, err := decodePair(certPEM, keyPEM)
			require.NoError(t, err)
			leaf = p.cert
		}
		require.Empty(t, a.due(leaf, r, now))
		roots := x509.NewCertPool()
		for _, c := range a.trusted {
			roots.AddCert(c)
			if id := c.SerialNumber.String(); trustedSince[id].IsZero() {
				trustedSince[id] = now
			}
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now.Add(24 * time.Hour), DNSName: "server.test"})
		require.NoError(t, err, now)
		signer := a.signing.cert.SerialNumber.String()
		if !signers[signer] {
			signers[signer] = true
			assert.GreaterOrEqual(t, now.Sub(trustedSince[signer]), year-10*24*time.Hour, "trusted before it signs")
		}
		require.LessOrEqual(t, len(a.trusted), 2)
	}
	assert.Len(t, signers, 4, "generations in 30 years")
}

// If the program did not run for years, the successor signs at once or in half of the time left.
func TestLateRotation(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	a, err := newAuthority("test", now)
	require.NoError(t, err)
	first := a.signing.cert

	late := first.NotAfter.Add(-30 * 24 * time.Hour)
	require.NoError(t, a.advance(late))
	assert.Equal(t, first, a.signing.cert)
	assert.Len(t, a.trusted, 2)
	require.NoError(t, a.advance(late.Add(16*24*time.Hour)))
	assert.NotEqual(t, first, a.signing.cert)

	a, err = newAuthority("test", now)
	require.NoError(t, err)
	expired := a.signing.cert.NotAfter.Add(year)
	require.NoError(t, a.advance(expired))
	assert.True(t, a.signing.cert.NotAfter.After(expired))
	assert.Equal(t, []*x509.Certificate{a.signing.cert}, a.trusted)
}

func TestDue(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	a, err := newAuthority("test", now)
	require.NoError(t, err)
	other, err := newAuthority("test", now)
	require.NoError(t, err)
	r := request{commonName: "client"}
	certPEM, _, err := a.issue(r, now)
	require.NoError(t, err)
	certs, err := cert.ParseCertsPEM(certPEM)
	require.NoError(t, err)
	c := certs[0]
	assert.Empty(t, a.due(c, r, now.Add(59*24*time.Hour)))
	assert.Contains(t, a.due(c, r, now.Add(61*24*time.Hour)), "expires")
	assert.Contains(t, a.due(c, request{commonName: "other"}, now), "names")
	assert.Contains(t, other.due(c, r, now), "authority")
	assert.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, c.ExtKeyUsage, "a client cannot serve")
	assert.False(t, c.IsCA)
}
