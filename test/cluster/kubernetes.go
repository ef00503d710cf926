package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1apply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/process"
)

// Groups are the API groups that macrack-apiserver serves, all in version v1alpha1.
var Groups = []string{"rack.macrack.io", "instance.macrack.io", "image.macrack.io", "config.macrack.io"}

// Kubectl runs kubectl as a user against kube-apiserver. The error of a failed command quotes its
// standard error.
func (c *Cluster) Kubectl(ctx context.Context, user string, args ...string) (stdout, stderr string, err error) {
	kubeconfig, err := c.Kubeconfig(user)
	if err != nil {
		return "", "", err
	}
	return c.KubectlWith(ctx, kubeconfig, "", args...)
}

// KubectlWith is Kubectl with the kubeconfig at a path, and a standard input.
func (c *Cluster) KubectlWith(ctx context.Context, kubeconfig, input string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(c.dir, "kubectl-cache"), "KUBERC=off")
	cmd.Dir, cmd.Stdin = c.root, strings.NewReader(input)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), errOut.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), errOut.String(), nil
}

// Apply applies a kustomization as admin: a path from the root of the repository, or an absolute
// one.
func (c *Cluster) Apply(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		path = filepath.Join(c.root, path)
	}
	if _, err := os.Stat(filepath.Join(path, "kustomization.yaml")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no kustomization.yaml", path)
	}
	shown := path
	if rel, err := filepath.Rel(c.root, path); err == nil && filepath.IsLocal(rel) {
		shown = rel
	}
	fmt.Fprintf(c.progress, "applying %s\n", shown)
	// Discovery takes a moment to find a kind that was just registered.
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %s", readyTimeout))
	defer cancel()
	var last error
	err := await.Poll(ctx, func(ctx context.Context) (bool, error) {
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

// prepareKubernetes creates the objects that a new control plane lacks.
func (c *Cluster) prepareKubernetes(ctx context.Context) error {
	if _, err := c.WriteUserKubeconfig(); err != nil {
		return err
	}
	return c.publishClusterInfo(ctx)
}

// Server returns the URL of kube-apiserver for other machines. If it serves on loopback only, it is
// the URL there.
func (c *Cluster) Server() string {
	if c.opts.Address == "" {
		return urlOf(c.Port("kube-apiserver"))
	}
	return "https://" + net.JoinHostPort(c.opts.Address, strconv.Itoa(c.Port("kube-apiserver")))
}

// publishClusterInfo creates the ConfigMap by which a joining Mac finds the cluster, as kubeadm
// does; kube-controller-manager signs it.
func (c *Cluster) publishClusterInfo(ctx context.Context) error {
	ca, err := os.ReadFile(c.pki.CertFile(clusterCA))
	if err != nil {
		return err
	}
	info, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: c.Server(), CertificateAuthorityData: ca},
	}})
	if err != nil {
		return err
	}
	clients, err := c.Clients(Admin)
	if err != nil {
		return err
	}
	const field = "macrack-dev"
	apply := metav1.ApplyOptions{FieldManager: field, Force: true}
	name, namespace := bootstrapapi.ConfigMapClusterInfo, metav1.NamespacePublic
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("namespace %s did not appear in %s", namespace, readyTimeout))
	defer cancel()
	return await.Poll(ctx, func(ctx context.Context) (bool, error) {
		_, err := clients.Kube.CoreV1().ConfigMaps(namespace).Apply(ctx,
			corev1apply.ConfigMap(name, namespace).WithData(map[string]string{bootstrapapi.KubeConfigKey: string(info)}), apply)
		if apierrors.IsNotFound(err) { // kube-apiserver creates the namespace a moment after it is ready
			return false, nil
		}
		if err != nil {
			return false, err
		}
		_, err = clients.Kube.RbacV1().Roles(namespace).Apply(ctx, rbacv1apply.Role(name, namespace).WithRules(
			rbacv1apply.PolicyRule().WithAPIGroups("").WithResources("configmaps").WithResourceNames(name).WithVerbs("get")), apply)
		if err != nil {
			return false, err
		}
		_, err = clients.Kube.RbacV1().RoleBindings(namespace).Apply(ctx, rbacv1apply.RoleBinding(name, namespace).
			WithRoleRef(rbacv1apply.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName(name)).
			WithSubjects(rbacv1apply.Subject().WithAPIGroup(rbacv1.GroupName).WithKind(rbacv1.UserKind).WithName("system:anonymous")), apply)
		return err == nil, err
	})
}

// join joins the nth Mac like a Mac in a rack: an administrator registers it and creates a token,
// which the Mac presents. A Mac that has joined is left alone.
func (c *Cluster) join(ctx context.Context, n int) error {
	name := macName(n)
	if _, err := os.Stat(c.agentKubeconfig(name)); err == nil {
		return nil
	}
	fmt.Fprintf(c.progress, "%s joins\n", name)
	if _, _, err := c.Kubectl(ctx, Admin, "get", "macnodes.rack.macrack.io", name); err != nil {
		manifest := filepath.Join(c.dir, "kube", name+".yaml")
		err := process.WriteFile(manifest, fmt.Appendf(nil, "{apiVersion: rack.macrack.io/v1alpha1, kind: MacNode, metadata: {name: %s}, spec: {serialNumber: %s, className: base}}\n", name, serialNumber(n)), 0o644)
		if err != nil {
			return err
		}
		if _, _, err := c.Kubectl(ctx, Admin, "create", "-f", manifest); err != nil {
			return err
		}
	}
	admin, err := c.Kubeconfig(Admin)
	if err != nil {
		return err
	}
	config, err := kubeconfig.Config(admin, "")
	if err != nil {
		return err
	}
	hashes, err := credentials.Hashes(config)
	if err != nil {
		return err
	}
	agent := filepath.Join(c.bin, build.Programs["agent"])
	token, err := exec.CommandContext(ctx, agent, "token", "create", name, "--kubeconfig", admin, "--ttl", "10m").Output()
	if err != nil {
		return fmt.Errorf("a token for %s: %w: %s", name, err, stderrOf(err))
	}
	join := exec.CommandContext(ctx, agent, "join", "--server", config.Host, "--token-file=-", "--ca-cert-hash", strings.Join(hashes, ","),
		"--node-name", name, "--state-dir", filepath.Join(c.macDir(name), "state"))
	join.Stdin = bytes.NewReader(token)
	if _, err := join.Output(); err != nil {
		return fmt.Errorf("joining %s: %w: %s", name, err, stderrOf(err))
	}
	return nil
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}

// AggregateTo applies the product's objects in Kubernetes (namespace, roles, APIServices). It makes
// kube-apiserver forward macrack's groups to the server on the loopback port, with a certificate of
// caBundle (PEM). It does not wait until the API is available: WaitForAPI does.
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
	if err := process.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		return err
	}
	return c.Apply(ctx, dir)
}

// WaitForAPI waits until kube-apiserver serves all of macrack's groups.
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
	err = await.Poll(ctx, func(context.Context) (bool, error) {
		missing = slices.Clone(Groups)
		// An error here means that a group does not answer; the other groups are listed all the
		// same.
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
