// Package github is the source of jobs from GitHub Actions: a runner scale set.
package github

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/actions/scaleset"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/runners/pkg/config"
)

// Keys of the Secret: a token, or the three of a GitHub App, as for actions-runner-controller.
const (
	keyToken          = "github_token"
	keyAppID          = "github_app_id"
	keyInstallationID = "github_app_installation_id"
	keyPrivateKey     = "github_app_private_key"
)

// pollTimeout is longer than a long poll of GitHub, which takes 50 seconds.
const pollTimeout = 90 * time.Second

// errCredentials marks an error in the Secret.
var errCredentials = errors.New("invalid credentials")

// connect returns a client with the credentials of the Secret. It reads the Secret each time, so
// that new credentials take effect.
func (s *Source) connect(ctx context.Context) (*scaleset.Client, error) {
	secret, err := s.secrets.Get(ctx, s.github.SecretName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the credentials: %w", err)
	}
	options, err := clientOptions(s.github)
	if err != nil {
		return nil, err
	}
	info := scaleset.SystemInfo{System: "macrack-runners", Version: s.version, Subsystem: s.set}
	if token := string(secret.Data[keyToken]); token != "" {
		return scaleset.NewClientWithPersonalAccessToken(scaleset.NewClientWithPersonalAccessTokenConfig{
			GitHubConfigURL: s.github.URL, PersonalAccessToken: token, SystemInfo: info,
		}, options...)
	}
	app, err := appAuth(secret)
	if err != nil {
		return nil, err
	}
	return scaleset.NewClientWithGitHubApp(scaleset.ClientWithGitHubAppConfig{
		GitHubConfigURL: s.github.URL, GitHubAppAuth: app, SystemInfo: info,
	}, options...)
}

func appAuth(secret *corev1.Secret) (scaleset.GitHubAppAuth, error) {
	installation, err := strconv.ParseInt(string(secret.Data[keyInstallationID]), 10, 64)
	app := scaleset.GitHubAppAuth{
		ClientID: string(secret.Data[keyAppID]), InstallationID: installation, PrivateKey: string(secret.Data[keyPrivateKey]),
	}
	block, _ := pem.Decode([]byte(app.PrivateKey))
	if err != nil || block == nil || app.Validate() != nil {
		// The error could quote the key.
		return app, fmt.Errorf("%w: Secret %q needs the key %s, or %s, %s and, in PEM format, %s", errCredentials, secret.Name, keyToken, keyAppID, keyInstallationID, keyPrivateKey)
	}
	return app, nil
}

func clientOptions(github *config.GitHub) ([]scaleset.HTTPOption, error) {
	options := []scaleset.HTTPOption{
		scaleset.WithTimeout(pollTimeout), scaleset.WithRetryMax(2), scaleset.WithRetryWaitMax(10 * time.Second),
	}
	if github.ProxyURL != "" {
		proxy, err := url.Parse(github.ProxyURL)
		if err != nil {
			return nil, err
		}
		options = append(options, scaleset.WithProxy(http.ProxyURL(proxy)))
	}
	if github.CABundle != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(github.CABundle)) {
			return nil, errors.New("caBundle has no certificate in PEM format")
		}
		options = append(options, scaleset.WithRootCAs(pool))
	}
	return options, nil
}

// register returns the ID of the scale set, which it creates if needed.
func (s *Source) register(ctx context.Context, client *scaleset.Client) (int, error) {
	group, err := client.GetRunnerGroupByName(ctx, s.github.RunnerGroup)
	if err != nil {
		return 0, err
	}
	found, err := client.GetRunnerScaleSet(ctx, group.ID, s.github.ScaleSetName)
	if err != nil {
		return 0, err
	}
	if found == nil {
		found, err = client.CreateRunnerScaleSet(ctx, &scaleset.RunnerScaleSet{
			Name: s.github.ScaleSetName, RunnerGroupID: group.ID, RunnerSetting: scaleset.RunnerSetting{DisableUpdate: true},
		})
		if err != nil {
			return 0, err
		}
	}
	return found.ID, nil
}
