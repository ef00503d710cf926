package certificates

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// agents returns the users that the admission policies know as Macs.
func (c *cluster) agents(t *testing.T) (users []string) {
	binding, err := c.core.RbacV1().ClusterRoleBindings().Get(t.Context(), macsBinding, metav1.GetOptions{})
	require.NoError(t, err)
	for _, subject := range binding.Subjects {
		assert.Equal(t, rbacv1.Subject{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: subject.Name}, subject)
		users = append(users, subject.Name)
	}
	return users
}

func TestAMacIsKnownAsOneBeforeItHasACertificate(t *testing.T) {
	mac := macNode("mac-1", metav1.ConditionFalse)
	c := newCluster(t, []*certificatesv1.CertificateSigningRequest{
		newCSR(t, newKey(t), "mac-2", "system:bootstrap:abcdef", tokenFor("mac-1"), named("denied")),
		newCSR(t, newKey(t), "mac-1", "system:bootstrap:abcdef", tokenFor("mac-1"), named("first")),
		newCSR(t, newKey(t), "mac-1", "system:bootstrap:fedcba", tokenFor("mac-1"), named("second")),
	}, mac)
	is, _, _ := c.decide(t, "denied")
	require.Equal(t, certificatesv1.CertificateDenied, is)
	assert.Empty(t, c.agents(t))
	is, _, _ = c.decide(t, "first")
	require.Equal(t, certificatesv1.CertificateApproved, is)
	assert.Equal(t, []string{"system:node:mac-1"}, c.agents(t))

	require.NoError(t, c.core.RbacV1().ClusterRoleBindings().Delete(t.Context(), macsBinding, metav1.DeleteOptions{}))
	_, err := c.reconcile(t.Context(), "second")
	require.ErrorContains(t, err, "apply artifacts/deploy")
	csr, err := c.core.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "second", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, csr.Status.Conditions, "approved although the policies cannot distinguish it from a Linux machine")
}

func TestMacsAreKnown(t *testing.T) {
	c := newCluster(t, nil)
	m := &macs{c.core}
	writes := 0
	var failure error
	c.core.PrependReactor("update", "clusterrolebindings", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		return failure != nil, nil, failure
	})
	require.NoError(t, m.addUsers(t.Context(), "mac-2", "mac-1"))
	require.NoError(t, m.addUsers(t.Context(), "mac-1", "mac-3"))
	require.NoError(t, m.addUsers(t.Context(), "mac-2"))
	assert.Equal(t, []string{"system:node:mac-1", "system:node:mac-2", "system:node:mac-3"}, c.agents(t), "the user of a deleted MacNode is kept")
	assert.Equal(t, 2, writes, "no write without a change")
	failure = apierrors.NewConflict(rbacv1.Resource("clusterrolebindings"), macsBinding, nil)
	assert.ErrorIs(t, m.addUsers(t.Context(), "mac-4"), failure)
}
