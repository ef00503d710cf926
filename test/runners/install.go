package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/build"
)

// owner is a user with the role admin in the namespace of the tenant.
const owner = "acme-owner"

// needCache ends the startup script of a guest without the cache of the set.
const needCache = `[ -d "$MACRACK_CACHES/derived-data" ] || exit 1
`

// install installs the chart as the owner of the namespace, writes the configuration of the chart
// to a file, and returns the kubeconfig of the chart's service account. The pods of the chart stay
// Pending, because the cluster has no Nodes but Macs.
func (w *world) install(ctx context.Context, macs int) (string, error) {
	var settings struct{ URL, CA, Token, Install string }
	if err := w.get(ctx, "/settings", &settings); err != nil {
		return "", err
	}
	instances := map[string]any{"className": "small", "imageName": "macos-26-xcode-26", "warm": 1}
	leases := func(most int) map[string]any {
		return map[string]any{
			"className": "base", "max": most, "growAfter": "1s",
			"caches": []any{map[string]any{"name": "derived-data", "sizeLimit": "1Gi"}},
		}
	}
	values, err := json.Marshal(map[string]any{"sets": []any{
		map[string]any{
			"name": "ios", "leases": leases(macs), "instances": instances,
			"github": map[string]any{"url": settings.URL, "caBundle": settings.CA, "secretName": "github", "startupScript": settings.Install + needCache},
		},
		map[string]any{"name": "gitlab", "leases": leases(1), "instances": instances, "gitlab": map[string]any{}},
	}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(w.cluster.Dir(), "values.yaml")
	if err := os.WriteFile(file, values, 0o600); err != nil {
		return "", err
	}
	if _, _, err := w.cluster.Kubectl(ctx, cluster.Admin, "create", "rolebinding", "owner", "--namespace", tenant, "--clusterrole=admin", "--user="+owner); err != nil {
		return "", err
	}
	if err := w.helm(ctx, "install", "runners", "--values", file); err != nil {
		return "", err
	}
	if _, _, err := w.owner(ctx, "create", "secret", "generic", "github", "--from-literal=github_token="+settings.Token); err != nil {
		return "", err
	}
	config, _, err := w.owner(ctx, "get", "configmap", "macrack-runners", "-o", `jsonpath={.data.config\.yaml}`)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(w.configFile(), []byte(config), 0o600); err != nil {
		return "", err
	}
	token, _, err := w.owner(ctx, "create", "token", "macrack-runners", "--duration=2h")
	if err != nil {
		return "", err
	}
	return w.writeKubeconfig(strings.TrimSpace(token))
}

func (w *world) owner(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	return w.cluster.Kubectl(ctx, owner, append(args, "--namespace", tenant)...)
}

// helm runs helm with the chart as the owner.
func (w *world) helm(ctx context.Context, command, release string, args ...string) error {
	root, err := build.Root()
	if err != nil {
		return err
	}
	kubeconfig, err := w.cluster.Kubeconfig(owner)
	if err != nil {
		return err
	}
	args = append([]string{
		command, release, filepath.Join(root, "artifacts", "charts", "macrack-runners"), "--namespace", tenant, "--kubeconfig", kubeconfig,
	}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(w.cluster.Bin(), "helm"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("helm %s: %w: %s", command, err, out)
	}
	return nil
}

func (w *world) writeKubeconfig(token string) (string, error) {
	config, err := w.cluster.RESTConfig(cluster.Admin)
	if err != nil {
		return "", err
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["dev"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData}
	file.AuthInfos["runners"] = &clientcmdapi.AuthInfo{Token: token}
	file.Contexts["runners"] = &clientcmdapi.Context{Cluster: "dev", AuthInfo: "runners", Namespace: tenant}
	file.CurrentContext = "runners"
	path := filepath.Join(w.cluster.Dir(), "runners.kubeconfig")
	return path, clientcmd.WriteToFile(*file, path)
}
