package credentials

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	tokenutil "k8s.io/cluster-bootstrap/token/util"

	"macrack.io/macrack/pkg/rules"
)

// CreateToken creates a bootstrap token that joins the Mac of this name once, until it expires.
func CreateToken(ctx context.Context, client kubernetes.Interface, node string, expires time.Time) (Token, error) {
	group := rules.BootstrapGroupOf(node)
	if err := tokenutil.ValidateBootstrapGroupName(group); err != nil {
		return Token{}, fmt.Errorf("invalid Mac name %q: %w", node, err)
	}
	text, err := tokenutil.GenerateBootstrapToken()
	if err != nil {
		return Token{}, err
	}
	token, err := ParseToken(text)
	if err != nil {
		return Token{}, err
	}
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: tokenutil.BootstrapTokenSecretName(token.ID), Namespace: metav1.NamespaceSystem},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               token.ID,
			bootstrapapi.BootstrapTokenSecretKey:           token.secret,
			bootstrapapi.BootstrapTokenExpirationKey:       expires.UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenUsageSigningKey:     "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey:      rules.BootstrapGroup + "," + group,
			bootstrapapi.BootstrapTokenDescriptionKey:      "for Mac " + node + " to join",
		},
	}, metav1.CreateOptions{})
	return token, err
}
