package cluster

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteDeployment writes a kustomization into dir: artifacts/deploy with the parts that each
// cluster has for itself. These are the Secrets with certificates, whose authorities are created
// here, and the APIServices' caBundle. Existing files in dir are reused.
func WriteDeployment(dir string) error {
	root, err := RepoRoot()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	p := pki{dir: filepath.Join(dir, "pki")}
	serving, err := p.authority(servingCA)
	if err != nil {
		return err
	}
	etcd, err := p.authority(etcdCA)
	if err != nil {
		return err
	}
	const members = "macrack-etcd." + Namespace + ".svc"
	err = errors.Join(
		serving.server(servingCert, "macrack-apiserver."+Namespace, "macrack-apiserver."+Namespace+".svc"),
		etcd.server(etcdCert, members, "*."+members),
		etcd.client(etcdClientCert, "macrack-apiserver"),
	)
	if err != nil {
		return err
	}
	caBundle, err := os.ReadFile(p.certFile(servingCA))
	if err != nil {
		return err
	}
	deploy, err := filepath.Rel(dir, filepath.Join(root, "artifacts", "deploy"))
	if err != nil {
		return err
	}

	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- %s
generatorOptions:
  disableNameSuffixHash: true
  labels:
    app.kubernetes.io/part-of: macrack
secretGenerator:
`, deploy)
	for _, secret := range []struct{ name, ca, cert string }{
		{"macrack-apiserver-tls", servingCA, servingCert},
		{"macrack-etcd-tls", etcdCA, etcdCert},
		{"macrack-etcd-client-tls", etcdCA, etcdClientCert},
	} {
		fmt.Fprintf(&b, `- name: %s
  namespace: %s
  files:
  - ca.crt=pki/%s.crt
  - tls.crt=pki/%s.crt
  - tls.key=pki/%s.key
`, secret.name, Namespace, secret.ca, secret.cert, secret.cert)
	}
	fmt.Fprintf(&b, `patches:
- target:
    group: apiregistration.k8s.io
    kind: APIService
  patch: |-
    - op: add
      path: /spec/caBundle
      value: %s
`, base64.StdEncoding.EncodeToString(caBundle))
	return writeFile(filepath.Join(dir, "kustomization.yaml"), []byte(b.String()), 0o600)
}
