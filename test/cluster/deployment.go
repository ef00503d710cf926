package cluster

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/pki"
	"macrack.io/macrack/test/cluster/process"
)

// WriteDeployment writes a kustomization into dir: artifacts/deploy with the parts that each
// cluster has for itself. These are the Secrets with certificates, whose authorities are created
// here, and the APIServices' caBundle. Existing files in dir are reused.
func WriteDeployment(dir string) error {
	root, err := build.Root()
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
	p := pki.Dir(filepath.Join(dir, "pki"))
	serving, err := p.Authority(servingCA)
	if err != nil {
		return err
	}
	etcd, err := p.Authority(etcdCA)
	if err != nil {
		return err
	}
	const members = "macrack-etcd." + Namespace + ".svc"
	err = errors.Join(
		serving.Server(servingCert, "macrack-apiserver."+Namespace, "macrack-apiserver."+Namespace+".svc"),
		etcd.Server(etcdCert, members, "*."+members),
		etcd.Client(etcdClientCert, "macrack-apiserver"),
	)
	if err != nil {
		return err
	}
	caBundle, err := os.ReadFile(p.CertFile(servingCA))
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
	return process.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(b.String()), 0o600)
}
