package certificates

import (
	"crypto/ecdsa"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestATokenIsForOneJoining(t *testing.T) {
	key, groups := newKey(t), tokenFor("mac-1")
	ask := func(name string, key *ecdsa.PrivateKey, user string) *certificatesv1.CertificateSigningRequest {
		return newCSR(t, key, "mac-1", user, groups, named(name))
	}
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{
		ask("first", key, "system:bootstrap:abcdef"), ask("second", newKey(t), "system:bootstrap:abcdef"),
		ask("again", key, "system:bootstrap:abcdef"), ask("another", newKey(t), "system:bootstrap:fedcba"),
	}, macNode("mac-1", metav1.ConditionFalse))
	is, _, _ := c.decide(t, "first")
	require.Equal(t, certificatesv1.CertificateApproved, is)
	// The second request comes before any informer can know of the first.
	is, reason, message := c.decide(t, "second")
	assert.Equal(t, certificatesv1.CertificateDenied, is)
	assert.Equal(t, reasonTokenSpent, reason)
	assert.Contains(t, message, "bootstrap token abcdef has been used at 12:00:00Z")
	is, _, message = c.decide(t, "again")
	assert.Equal(t, certificatesv1.CertificateApproved, is, "the same Mac requests again after a crash: %s", message)
	is, _, message = c.decide(t, "another")
	assert.Equal(t, certificatesv1.CertificateApproved, is, "an administrator has created another token: %s", message)
}

func TestDecidedRequestsAreLeftAlone(t *testing.T) {
	csr := newCSR(t, newKey(t), "mac-2", "system:bootstrap:abcdef", tokenFor("mac-1"))
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand"}}
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{csr}, macNode("mac-2", metav1.ConditionFalse))
	is, reason, _ := c.decide(t, "csr-x")
	assert.Equal(t, certificatesv1.CertificateApproved, is)
	assert.Equal(t, "ByHand", reason)
	_, err := c.reconcile(t.Context(), "gone")
	assert.NoError(t, err)
}

func TestServingWhenKubeAPIServersPlaceIsNotKnown(t *testing.T) {
	for name, spoil := range map[string]func(*cluster){
		"no cluster-info": func(c *cluster) {
			require.NoError(t, c.core.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), "kube-public", "cluster-info"))
		},
		"a name that does not resolve": func(c *cluster) { delete(c.addresses, "api.example.com") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, []*certificatesv1.CertificateSigningRequest{
				newCSR(t, newKey(t), "mac-1", "system:node:mac-1", nodeGroups, serving([]string{"mac-1"}, "10.0.0.1"), named("own")),
				newCSR(t, newKey(t), "mac-1", "system:node:mac-1", nodeGroups, serving(nil, "10.96.0.10"), named("service")),
			}, macNode("mac-1", metav1.ConditionTrue))
			spoil(c)
			is, _, message := c.decide(t, "own")
			assert.Equal(t, certificatesv1.CertificateApproved, is, message)
			is, _, _ = c.decide(t, "service")
			assert.Equal(t, certificatesv1.CertificateDenied, is)
		})
	}
}

func TestServingWaitsForTheNode(t *testing.T) {
	csr := newCSR(t, newKey(t), "mac-9", "system:node:mac-9", nodeGroups, serving([]string{"mac-9"}))
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{csr}, macNode("mac-9", metav1.ConditionFalse))
	due, err := c.reconcile(t.Context(), "csr-x")
	require.NoError(t, err)
	assert.Equal(t, noon.Add(registrationRetry), due)
	is, _, _ := c.decide(t, "csr-x")
	assert.Empty(t, is)
}
