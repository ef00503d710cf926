package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
)

// Groups are the API groups that macrack-apiserver serves, all in version v1alpha1.
var Groups = []string{"rack.macrack.io", "instance.macrack.io", "image.macrack.io", "config.macrack.io"}

// bootstrapGroup is the group of whoever shows our bootstrap token; artifacts/deploy lets it ask for a node's certificate.
const bootstrapGroup = "system:bootstrappers:macrack"

// Kubectl runs kubectl as a user against kube-apiserver. The error of a failed command has what it wrote to standard error.
func (c *Cluster) Kubectl(ctx context.Context, user string, args ...string) (stdout, stderr string, err error) {
	kubeconfig, err := c.Kubeconfig(user)
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(c.dir, "kubectl-cache"), "KUBERC=off")
	cmd.Dir = c.root
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), errOut.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), errOut.String(), nil
}

// Apply applies a kustomization as admin: a path from the root of the repository, or an absolute one.
func (c *Cluster) Apply(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		path = filepath.Join(c.root, path)
	}
	if _, err := os.Stat(filepath.Join(path, "kustomization.yaml")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("nothing to apply: %s has no kustomization.yaml", path)
	}
	shown := path
	if rel, err := filepath.Rel(c.root, path); err == nil && filepath.IsLocal(rel) {
		shown = rel
	}
	fmt.Fprintf(c.progress, "applying %s\n", shown)
	// What a kind just registered takes a moment to be found.
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	var last error
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		_, _, err := c.Kubectl(ctx, Admin, "apply", "--server-side", "--force-conflicts", "--field-manager=macrack-dev", "-k", path)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		transient := err != nil && slices.ContainsFunc([]string{"no matches for kind", "could not find the requested resource", "ServiceUnavailable", "currently unable to handle the request"},
			func(s string) bool { return strings.Contains(err.Error(), s) })
		if err != nil && !transient {
			return false, err
		}
		return err == nil, nil
	})
	if err != nil && ctx.Err() != nil && last != nil {
		return fmt.Errorf("applying %s: %w", shown, last)
	}
	return err
}

// prepareKubernetes creates what a new control plane lacks.
func (c *Cluster) prepareKubernetes(ctx context.Context) error {
	if _, err := c.WriteUserKubeconfig(); err != nil {
		return err
	}
	if c.opts.Macs == 0 {
		return nil
	}
	token, err := c.bootstrapToken()
	if err != nil {
		return err
	}
	config, err := c.RESTConfig(Admin)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	id, secret, _ := strings.Cut(token, ".")
	object := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: metav1.NamespaceSystem},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id":                       id,
			"token-secret":                   secret,
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              bootstrapGroup,
			"description":                    "for the agents of the dev cluster",
		},
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("namespace %s did not appear in %s", metav1.NamespaceSystem, readyTimeout))
	defer cancel()
	return poll(ctx, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, object, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			return true, nil
		case apierrors.IsNotFound(err): // kube-apiserver creates the namespace a moment after it is ready
			return false, nil
		}
		return err == nil, err
	})
}

// AggregateTo applies what the product needs in Kubernetes (namespace, roles, APIServices) and has kube-apiserver forward our groups to
// whatever serves on the loopback port with a certificate of caBundle (PEM). It does not wait until the API is available: WaitForAPI does.
func (c *Cluster) AggregateTo(ctx context.Context, port int, caBundle []byte) error {
	dir := filepath.Join(c.dir, "deploy")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	base, err := filepath.Rel(dir, filepath.Join(c.root, "hack", "dev", "manifests"))
	if err != nil {
		return err
	}
	kustomization := fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- %s
patches:
- target:
    group: apiregistration.k8s.io
    kind: APIService
  patch: |-
    - op: add
      path: /spec/caBundle
      value: %s
    - op: replace
      path: /spec/service/port
      value: %d
`, base, base64.StdEncoding.EncodeToString(caBundle), port)
	if err := writeFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		return err
	}
	return c.Apply(ctx, dir)
}

// WaitForAPI waits until kube-apiserver serves all of our groups.
func (c *Cluster) WaitForAPI(ctx context.Context) error {
	config, err := c.RESTConfig(Admin)
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	var missing []string
	err = poll(ctx, func(context.Context) (bool, error) {
		missing = slices.Clone(Groups)
		// An error here is a group that does not answer; what does is listed all the same.
		_, lists, _ := client.ServerGroupsAndResources()
		for _, list := range lists {
			group, _, _ := strings.Cut(list.GroupVersion, "/")
			if len(list.APIResources) > 0 {
				missing = slices.DeleteFunc(missing, func(s string) bool { return s == group })
			}
		}
		return len(missing) == 0, nil
	})
	if err != nil {
		status, _, _ := c.Kubectl(context.Background(), Admin, "get", "apiservices", "-l", "app.kubernetes.io/part-of=macrack",
			"-o", `jsonpath={range .items[*]}{.metadata.name}: {.status.conditions[?(@.type=="Available")].message}{"\n"}{end}`)
		return fmt.Errorf("kube-apiserver does not serve %s: %w\n%s", strings.Join(missing, ", "), err, status)
	}
	return nil
}
