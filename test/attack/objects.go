package main

import (
	"fmt"
	"strings"
)

const base, studio = `"className":"base"`, `"className":"studio"` // only the first has Macs

func (w *world) acmeLease() string { return leases("acme") + "/attack-acme" }

func (w *world) globexLease() string { return leases("globex") + "/attack-globex" }

func (w *world) acmeNode() string { return rackPath + "/macnodes/" + w.acmeMac }

func macNodeBody(name, serial string) string {
	return fmt.Sprintf(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNode","metadata":{"name":%q},"spec":{"serialNumber":%q,"className":"base"}}`, name, serial)
}

func leases(namespace string) string { return rackPath + "/namespaces/" + namespace + "/macnodeleases" }

func records(namespace string) string { return rackPath + "/namespaces/" + namespace + "/auditrecords" }

func instances(namespace string) string {
	return instancePath + "/namespaces/" + namespace + "/macosinstances"
}

func leaseBody(metadata, spec string) string { return leaseWith(metadata, spec, "") }

func leaseWith(metadata, spec, status string) string {
	if status != "" {
		status = `,"status":{` + status + `}`
	}
	return `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{` + metadata + `},"spec":{` + spec + `}` + status + `}`
}

// instanceBody is an instance of class small and an existing image, with the given spec added.
func instanceBody(metadata, spec string) string {
	return `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{` + metadata + `},"spec":{"className":"small","imageName":"` + macOSImage + `",` + spec + `}}`
}

func podBody(metadata, spec string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{` + metadata + `},"spec":{"containers":[{"name":"c","image":"registry.example.com/c:1"}],` + spec + `}}`
}

func (w *world) recordBody(layer, node string) string {
	return fmt.Sprintf(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"AuditRecord","type":"InstanceRejected","tenant":"acme","chassis":{"nodeName":%q},"details":{"layer":%q,"reason":"Attack","message":"made up"}}`, node, layer)
}

// secrets are known only to tenant globex and administrators.
func (w *world) secrets() []string { return []string{w.globexUID, w.globexSerial} }

// ours is known only to tenant acme, its agent and administrators.
func (w *world) ours() []string { return []string{w.acmeUID, w.acmeSerial} }

const (
	goodContents  = `{"name":"macOS","version":"26.1","build":"25B78"},{"name":"Xcode","version":"26.1","build":"17B55"},{"name":"guest-agent","version":"0.1.0"}`
	goodReference = "registry.example.com/macos/26:xcode-26"
)

func imageBody(name, contents, reference string) string {
	return fmt.Sprintf(`{"apiVersion":"image.macrack.io/v1alpha1","kind":"MacOSImage","metadata":{"name":%q},"spec":{"contents":[%s],"source":{"reference":%q,"digest":"sha256:%s"},"diskSize":"60Gi"}}`,
		name, contents, reference, strings.Repeat("ab", 32))
}
