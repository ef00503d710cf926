package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
)

// secrets are known only to tenant globex and administrators.
func (w *world) secrets() []string { return []string{w.globexUID, w.globexSerial} }

// ours is known only to tenant acme, its agent and administrators.
func (w *world) ours() []string { return []string{w.acmeUID, w.acmeSerial} }

func (w *world) leaks() []attempt {
	const family = "leaks"
	hidden := func(codes ...int) want { return want{codes: codes, lacks: w.secrets()} }
	token := func(v string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(v))
	}
	watch := func(path string) step { return get(path + "watch=1&timeoutSeconds=1") }
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	attempts := []attempt{
		{family, "the leases of all tenants", "acme", get(rackPath + "/macnodeleases"), noRight(), ""},
		{family, "the leases of all tenants, as a table", "acme", call{method: "GET", path: rackPath + "/macnodeleases", accept: table}.do, noRight(), ""},
		{family, "the leases of all tenants, as protocol buffers", "acme", call{method: "GET", path: rackPath + "/macnodeleases", accept: "application/vnd.kubernetes.protobuf"}.do, hidden(403), ""},
		{family, "the leases of all tenants, those of one's own selected", "acme", get(rackPath + "/macnodeleases?fieldSelector=metadata.namespace%3Dacme"), noRight(), ""},
		{family, "the leases of all tenants, watched", "acme", watch(rackPath + "/macnodeleases?"), noRight(), ""},
		{family, "the leases of all tenants, by the old path of watches", "acme", get(rackPath + "/watch/macnodeleases?timeoutSeconds=1"), hidden(403, 404), ""},
		{family, "another tenant's leases", "acme", get(leases("globex")), noRight(), ""},
		{family, "another tenant's lease", "acme", get(w.globexLease()), noRight(), ""},
		{family, "another tenant's lease, pretty", "acme", get(w.globexLease() + "?pretty=true"), noRight(), ""},
		{family, "another tenant's leases, watched", "acme", watch(leases("globex") + "?"), noRight(), ""},
		{family, "another tenant's lease, by a field selector in one's own namespace", "acme", get(leases("acme") + "?fieldSelector=metadata.namespace%3Dglobex"), hidden(200, 400), ""},
		{family, "another tenant's lease, by its Mac in one's own namespace", "acme", get(leases("acme") + "?fieldSelector=status.nodeName%3D" + w.globexMac), hidden(200, 400), ""},
		{family, "leases as of the beginning", "acme", get(leases("acme") + "?resourceVersion=0"), hidden(200), ""},
		{family, "leases as of a revision exactly", "acme", get(leases("acme") + "?resourceVersion=2&resourceVersionMatch=Exact"), hidden(200, 400, 410), ""},
		{family, "leases of a revision far ahead", "acme", get(leases("acme") + "?resourceVersion=999999999999&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"), hidden(400, 504, 500), ""},
		{family, "leases watched from the beginning", "acme", watch(leases("acme") + "?resourceVersion=1&"), hidden(200, 410), ""},
		{family, "leases watched with their initial events", "acme", watch(leases("acme") + "?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&"), hidden(200), ""},
		{family, "records watched with their initial events", "acme", watch(records("acme") + "?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&"), hidden(200), ""},
		{family, "leases watched as a table", "acme", call{method: "GET", path: leases("acme") + "?watch=1&timeoutSeconds=1&resourceVersion=0", accept: table}.do, hidden(200), ""},
		{family, "a table with the objects in it", "acme", call{method: "GET", path: leases("acme") + "?includeObject=Object", accept: table}.do, hidden(200), ""},
		{family, "a continuation into another namespace", "acme", get(leases("acme") + "?limit=1&continue=" + token(`{"v":"meta.k8s.io/v1","rv":-1,"start":"../globex/a"}`)), hidden(400, 410), ""},
		{family, "a continuation of nothing, into another namespace", "acme", get(leases("acme") + "?limit=500&continue=" + token(`{"v":"meta.k8s.io/v1","rv":1,"start":"/../globex/"}`)), hidden(400, 410), ""},
		{family, "a continuation past one's own namespace", "acme", get(leases("acme") + "?limit=500&continue=" + token(`{"v":"meta.k8s.io/v1","rv":-1,"start":"zzz"}`)), hidden(200, 400, 410), ""},
		{family, "an invalid continue token", "acme", get(leases("acme") + "?limit=1&continue=xxx"), hidden(400), ""},
		{family, "a continuation of records into another namespace", "acme", get(records("acme") + "?limit=1&continue=" + token(`{"v":"meta.k8s.io/v1","rv":-1,"start":"../globex/a"}`)), hidden(400, 410), ""},
		{family, "another tenant's records", "acme", get(records("globex")), noRight(), ""},
		{family, "another tenant's records in one's own namespace", "acme", get(records("acme")), hidden(200), ""},
		{family, "the records of all tenants", "acme", get(rackPath + "/auditrecords"), noRight(), ""},
		{family, "reports of compliance", "acme", get(rackPath + "/compliancereports"), noRight(), ""},
		{family, "Macs", "acme", get(rackPath + "/macnodes"), noRight(), ""},
		{family, "one's own Mac", "acme", get(w.acmeNode()), noRight(), ""},
		{family, "Macs, watched", "acme-admin", watch(rackPath + "/macnodes?"), noRight(), ""},
		{family, "the status of one's lease", "acme-admin", get(w.acmeLease() + "/status"), noRight(), ""},
		{family, "the configuration", "acme", get(configPath + "/rackconfigs/default"), noRight(), ""},
		{family, "another tenant's instances", "globex", get(instances("acme")), noRight(), ""},
		{family, "the instances of all tenants, by their Mac", "globex", get(instancePath + "/macosinstances?fieldSelector=status.nodeName%3D" + w.acmeMac), noRight(), ""},
		{family, "the discovery of the groups", "acme", get(rackPath), hidden(200), ""},
		{family, "the OpenAPI schema", "acme", get("/openapi/v3/apis/rack.macrack.io/v1alpha1"), hidden(200), ""},
		{family, "metrics", "acme", call{method: "GET", path: "/metrics", replica: 1}.do, noRight(), ""},
		{family, "profiles", "acme", call{method: "GET", path: "/debug/pprof/heap", replica: 1}.do, noRight(), ""},
		{family, "flags", "acme", call{method: "GET", path: "/flagz", replica: 1}.do, hidden(403, 404), ""},
		{family, "leases of all tenants, directly", "acme", call{method: "GET", path: rackPath + "/macnodeleases", replica: 2}.do, noRight(), ""},
		// The catalogue has the serial numbers of the Macs that hold an image. It must not show
		// their tenants or names.
		{family, "the tenants of the Macs with the images of the catalogue", "acme", get(imagePath + "/macosimages"), want{codes: []int{200}, says: macOSImage, lacks: []string{w.globexUID, w.globexMac, "globex"}}, ""},
		{family, "leases", "anonymous", get(leases("acme")), noRight(), ""},
		{family, "leases", "hardware", get(records("acme")), noRight(), ""},
		{family, "instances", "auditor", get(instances("acme")), noRight(), ""},
	}
	for _, selector := range []string{"spec.prefetchImages%3Dx", "status.instances%3Dx", "metadata.uid%3D" + w.globexUID, "status.instances", "spec..className%3D"} {
		attempts = append(attempts, attempt{family, "leases by an unknown field: " + selector, "acme", get(leases("acme") + "?fieldSelector=" + selector), hidden(400), ""})
	}
	return attempts
}

func podBody(metadata, spec string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{` + metadata + `},"spec":{"containers":[{"name":"c","image":"registry.example.com/c:1"}],` + spec + `}}`
}

func (w *world) podsAndNodes() []attempt {
	const family = "pods and nodes"
	const pods = "/api/v1/namespaces/acme/pods"
	pod := func(spec string) step { return post(pods, podBody(`"name":"attack-x"`, spec)) }
	asking := func(resources string) step {
		return post(pods, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"attack-x"},"spec":{`+resources+`}}`)
	}
	node := "/api/v1/nodes/" + w.acmeMac
	another := "/api/v1/nodes/" + w.globexMac
	rule2, rule1 := forbidden("rule 2"), forbidden("rule 1")
	attempts := []attempt{
		{family, "a pod that tolerates unleased Macs", "acme", pod(`"tolerations":[{"key":"macrack.io/unleased","operator":"Exists","effect":"NoSchedule"}]`), rule2, ""},
		{family, "a pod that tolerates its own tenant's Mac", "acme", pod(`"tolerations":[{"key":"macrack.io/tenant","operator":"Equal","value":"acme","effect":"NoSchedule"}]`), rule2, ""},
		{family, "a pod that tolerates another tenant's Mac", "acme", pod(`"tolerations":[{"key":"macrack.io/tenant","operator":"Equal","value":"globex","effect":"NoSchedule"}]`), rule2, ""},
		{family, "a pod that tolerates any tenant's Mac", "acme", pod(`"tolerations":[{"key":"macrack.io/tenant","operator":"Exists"}]`), rule2, ""},
		{family, "a pod that tolerates everything", "acme", pod(`"tolerations":[{"operator":"Exists"}]`), rule2, ""},
		{family, "a pod that tolerates everything of the effect", "acme", pod(`"tolerations":[{"operator":"Exists","effect":"NoSchedule"}]`), rule2, ""},
		{family, "a pod that tolerates everything, on Nodes of any kind", "acme", pod(`"tolerations":[{"operator":"Exists"}],"nodeSelector":{"kubernetes.io/os":"darwin"}`), rule2, ""},
		{family, "a pod that names a Mac", "acme", pod(`"nodeName":"` + w.acmeMac + `"`), rule2, ""},
		{family, "a pod that names another tenant's Mac", "acme-admin", pod(`"nodeName":"` + w.globexMac + `"`), rule2, ""},
		{family, "a pod that asks for a virtual machine", "acme", asking(`"containers":[{"name":"c","image":"c","resources":{"requests":{"macrack.io/macos-vm":"1"},"limits":{"macrack.io/macos-vm":"1"}}}]`), rule1, ""},
		{family, "a pod whose first container asks for one", "acme", asking(`"initContainers":[{"name":"i","image":"c","resources":{"limits":{"macrack.io/macos-vm":"1"}}}],"containers":[{"name":"c","image":"c"}]`), rule1, ""},
		{family, "a pod bound by its binding", "acme-admin", post(pods+"/attack-x/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"attack-x"},"target":{"kind":"Node","name":"`+w.acmeMac+`"}}`), noRight(), ""},
		{family, "a pod bound by a binding of the namespace", "acme-admin", post("/api/v1/namespaces/acme/bindings", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"attack-x"},"target":{"kind":"Node","name":"`+w.acmeMac+`"}}`), noRight(), ""},
		{family, "a pod in the product's namespace", "acme", post("/api/v1/namespaces/macrack-system/pods", podBody(`"name":"attack-x"`, `"serviceAccountName":"macrack-controllers"`)), noRight(), ""},
		{family, "a placeholder pod of one's own making", "acme", post(pods, podBody(`"name":"attack-x","labels":{"macrack.io/instance":"attack-1"},"annotations":{"macrack.io/instance-uid":"x"}`, `"tolerations":[{"key":"macrack.io/tenant","operator":"Equal","value":"acme","effect":"NoSchedule"}]`)), forbidden("only MacRack's controllers set them"), ""},
		{family, "tolerations added to a placeholder pod", "acme", patch(strategicPatch, pods+"/attack-1-vm", `{"spec":{"tolerations":[{"key":"macrack.io/unleased","operator":"Exists","effect":"NoSchedule"}]}}`), invalid("spec.tolerations"), ""},
		{family, "the Node of a Mac without its tenant", "root", patch(mergePatch, node, `{"spec":{"taints":null}}`), rule2, ""},
		{family, "the Node of a Mac as another tenant's", "root", patch(mergePatch, node, `{"spec":{"taints":[{"key":"macrack.io/tenant","value":"globex","effect":"NoSchedule"}]}}`), rule2, ""},
		{family, "the Node of a Mac as unleased", "admin", patch(mergePatch, node, `{"spec":{"taints":[{"key":"macrack.io/unleased","effect":"NoSchedule"}]}}`), rule2, ""},
		{family, "the Node of a Mac as two tenants'", "controllers", patch(mergePatch, node, `{"spec":{"taints":[{"key":"macrack.io/tenant","value":"acme","effect":"NoSchedule"},{"key":"macrack.io/tenant","value":"globex","effect":"NoExecute"}]}}`), rule2, ""},
		{family, "the Node of a Mac without any taint", "controllers", patch(mergePatch, node, `{"spec":{"taints":null}}`), rule2, ""},
		{family, "the Node of a Mac for three virtual machines", "root", patch(mergePatch, node+"/status", `{"status":{"capacity":{"macrack.io/macos-vm":"3"}}}`), rule1, ""},
		{family, "the Node of a Mac for three virtual machines", "agent", patch(mergePatch, node+"/status", `{"status":{"capacity":{"macrack.io/macos-vm":"3"},"allocatable":{"macrack.io/macos-vm":"3"}}}`), rule1, ""},
		{family, "the Node of a Mac as one of another system", "root", patch(mergePatch, node, `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`), rule2, ""},
		{family, "the Node of a Mac as no Mac", "root", patch(mergePatch, node, `{"metadata":{"labels":{"macrack.io/mac":null}}}`), rule2, ""},
		{family, "the taints of its own Node", "agent", patch(mergePatch, node, `{"spec":{"taints":null}}`), forbidden("not allowed to modify taints"), ""},
		{family, "the Node of another Mac", "agent", patch(mergePatch, another, `{"metadata":{"labels":{"attack":"x"}}}`), forbidden("is not allowed to modify node"), ""},
		{family, "the status of another Mac's Node", "agent", patch(mergePatch, another+"/status", `{"status":{"capacity":{"macrack.io/macos-vm":"2"}}}`), forbidden("is not allowed to modify node"), ""},
		{family, "a Node", "acme", patch(mergePatch, node, `{"metadata":{"labels":{"attack":"x"}}}`), noRight(), ""},
		{family, "a Node of one's own making", "agent", post("/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"attack-x","labels":{"macrack.io/mac":"true"}}}`), forbidden("is not allowed to modify node"), ""},
		{family, "its own Node as a Linux machine's", "agent", post("/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+w.acmeMac+`","labels":{"kubernetes.io/os":"linux"}}}`), forbidden("must register as the Node of a Mac"), ""},
		{family, "a Node with virtual machines but without the label of a Mac", "root", post("/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"attack-x","labels":{"kubernetes.io/os":"darwin"}},"spec":{"taints":[{"key":"macrack.io/unleased","effect":"NoSchedule"}]},"status":{"capacity":{"macrack.io/macos-vm":"2"}}}`), rule2, ""},
		{family, "that it is a Mac, forgotten", "agent", patch(mergePatch, rbacPath+"/clusterrolebindings/macrack-macs", `{"subjects":null}`), noRight(), ""},
		{family, "a certificate and a Node of a Mac that has been retired", "root", retired, forbidden("is retired"), ""},
		{family, "a role other than that of Macs, for itself", "controllers", post(rbacPath+"/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"attack-x"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","namespace":"macrack-system","name":"macrack-controllers"}]}`), noRight(), ""},
		{family, "a mirror pod that a Service of the system selects", "agent", mirrorPod("kube-system"), forbidden("Nodes other than Macs"), ""},
		{family, "a mirror pod that a Service of a tenant selects", "agent", mirrorPod("globex"), forbidden("Nodes other than Macs"), ""},
		{family, "a Node that is a Mac without a taint", "root", post("/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"attack-x","labels":{"macrack.io/mac":"true","kubernetes.io/os":"darwin"}}}`), rule2, ""},
		{family, "devices that hand out virtual machines", "root", post("/apis/resource.k8s.io/v1/deviceclasses", `{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","metadata":{"name":"attack-x"},"spec":{"extendedResourceName":"macrack.io/macos-vm"}}`), rule1, ""},
		{family, "the pods of another tenant's Mac, by the Node's proxy", "acme", get("/api/v1/nodes/" + w.globexMac + "/proxy/pods"), noRight(), ""},
		{family, "a command in another tenant's pod", "globex", post("/api/v1/namespaces/acme/pods/attack-1-vm/exec?command=id&stdout=1", ""), noRight(), ""},
		{family, "the product's server, by a Service's proxy", "acme-admin", get("/api/v1/namespaces/macrack-system/services/https:macrack-apiserver:443/proxy" + rackPath + "/macnodes"), noRight(), ""},
		{family, "the policy on pods deleted", "root", remove("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/pods.macrack.io"), notFound(), ""},
	}
	return attempts
}

// retired retires a Mac that does not exist, and answers with the rights of its certificate once
// the policies know it.
func retired(ctx context.Context, w *world, who string) answer {
	const bindings, user = rbacPath + "/clusterrolebindings", "system:node:attack-retired" // a name that no other attempt registers as a Mac
	made := post(bindings, `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"attack-x"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"macrack-retired"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"`+user+`"}]}`)(ctx, w, "admin")
	if made.code != http.StatusCreated {
		return answer{err: fmt.Errorf("retiring: %d %s", made.code, made.text())}
	}
	defer remove(bindings+"/attack-x")(ctx, w, "admin")
	as := func(path, body string) answer {
		return call{method: http.MethodPost, path: path + "?dryRun=All", body: body, header: map[string]string{"Impersonate-User": user, "Impersonate-Group": "system:nodes"}}.do(ctx, w, who)
	}
	isRefused := func(a answer) bool {
		return a.code == http.StatusForbidden && strings.Contains(a.body, "is retired")
	}
	var a answer
	err := eventually(ctx, func() error {
		if a = as("/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"attack-retired"}}`); !isRefused(a) {
			return fmt.Errorf("it makes a Node: %d %s", a.code, short(a.text()))
		}
		return nil
	})
	if err != nil {
		return a
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return answer{err: err}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}}, key)
	if err != nil {
		return answer{err: err}
	}
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	return as(csrsPath, `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"attack-x"},"spec":{"request":"`+request+`","signerName":"kubernetes.io/kube-apiserver-client-kubelet","usages":["digital signature","client auth"]}}`)
}

// mirrorPod creates a pod as kubelets do for their static pods, with a label that a Service
// selects.
func mirrorPod(namespace string) step {
	return func(ctx context.Context, w *world, who string) answer {
		node := map[string]any{}
		if a := get("/api/v1/nodes/"+w.acmeMac)(ctx, w, "admin"); json.Unmarshal([]byte(a.body), &node) != nil || a.code != http.StatusOK {
			return answer{err: fmt.Errorf("reading the Node: %d %s", a.code, short(a.text()))}
		}
		metadata := fmt.Sprintf(`"name":"attack-x","labels":{"k8s-app":"kube-dns"},"annotations":{"kubernetes.io/config.mirror":"x"},`+
			`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q,"controller":true}]`, w.acmeMac, fmt.Sprint(dig(node, "metadata", "uid")))
		return post("/api/v1/namespaces/"+namespace+"/pods", podBody(metadata, `"nodeName":"`+w.acmeMac+`"`))(ctx, w, who)
	}
}

func (w *world) recordBody(layer, node string) string {
	return fmt.Sprintf(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"AuditRecord","type":"InstanceRejected","tenant":"acme","chassis":{"nodeName":%q},"details":{"layer":%q,"reason":"Attack","message":"made up"}}`, node, layer)
}

func (w *world) agents() []attempt {
	const family = "agents"
	none := noRight()
	mac, one := w.acmeNode()+"/status", instances("acme")+"/attack-1"
	return []attempt{
		{family, "another Mac", "agent", get(w.globexNode()), none, ""},
		{family, "all Macs", "agent", get(rackPath + "/macnodes"), none, ""},
		{family, "all Macs but one", "agent", get(rackPath + "/macnodes?fieldSelector=metadata.name!%3D" + w.acmeMac), none, ""},
		{family, "all Macs, by a label selector", "agent", get(rackPath + "/macnodes?labelSelector=a!%3Db"), none, ""},
		{family, "another Mac, watched", "agent", get(rackPath + "/macnodes?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3D" + w.globexMac), none, ""},
		{family, "all instances", "agent", get(instancePath + "/macosinstances"), none, ""},
		{family, "instances on another Mac", "other-agent", get(instancePath + "/macosinstances?fieldSelector=status.nodeName%3D" + w.acmeMac), none, ""},
		{family, "instances of a namespace", "agent", get(instances("acme")), none, ""},
		{family, "an instance on another Mac", "other-agent", get(one), none, ""},
		{family, "leases", "agent", get(leases("acme")), none, ""},
		{family, "records", "agent", get(records("acme")), none, ""},
		{family, "that an instance on another Mac stopped", "other-agent", patch(mergePatch, one+"/status", `{"status":{"phase":"Stopped"}}`), none, ""},
		{family, "that another Mac is scrubbed", "other-agent", patch(mergePatch, mac, `{"status":{"scrub":{"leaseUID":"`+w.acmeUID+`","finishedAt":"2026-01-01T00:00:00Z"}}}`), none, ""},
		{family, "that its own Mac is Ready", "agent", patch(mergePatch, mac, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Forged","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`), forbidden("follows from its heartbeats"), ""},
		{family, "that its own Mac is unleased", "agent", patch(mergePatch, mac, `{"status":{"leaseRef":null,"earliestReleaseAt":null}}`), ignored(), ""},
		{family, "that its own Mac is another tenant's", "agent", patch(mergePatch, mac, `{"status":{"leaseRef":{"namespace":"globex","name":"attack-globex","uid":"`+w.globexUID+`"}}}`), ignored(), ""},
		{family, "that its own Mac is free", "agent", patch(mergePatch, mac, `{"status":{"phase":"Available","releasingSince":"2026-01-01T00:00:00Z"}}`), ignored(), ""},
		{family, "that nothing runs on its own Mac", "agent", patch(mergePatch, mac, `{"status":{"runningVMs":0}}`), ignored(), ""},
		{family, "the spec of its own Mac", "agent", patch(mergePatch, w.acmeNode(), `{"spec":{"className":"studio"}}`), none, ""},
		{family, "the spec of its own Mac, by its status", "agent", patch(mergePatch, mac, `{"spec":{"maintenance":true,"serialNumber":"SIM8888888"}}`), ignored(), ""},
		{family, "labels of its own Mac, by its status", "agent", patch(mergePatch, mac, `{"metadata":{"labels":{"attack":"x"},"finalizers":["example.com/x"]}}`), ignored(), ""},
		{family, "a changed machine ID", "agent", patch(mergePatch, one+"/status", `{"status":{"machineID":"AAAA"}}`), invalid("never changes"), ""},
		{family, "that an instance is Starting again", "agent", patch(mergePatch, one+"/status", `{"status":{"phase":"Starting"}}`), invalid("does not go back"), ""},
		{family, "the placeholder pod of an instance", "agent", patch(mergePatch, one+"/status", `{"status":{"podName":"other"}}`), invalid("one placeholder pod"), ""},
		{family, "the Mac of an instance", "agent", patch(mergePatch, one+"/status", `{"status":{"nodeName":"`+w.globexMac+`"}}`), ignored(), ""},
		{family, "the spec of an instance", "agent", patch(mergePatch, one, `{"spec":{"imageName":"other"}}`), none, ""},
		{family, "to stop an instance", "agent", post(one+"/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop"}`), none, ""},
		{family, "an instance", "agent", post(instances("acme"), instanceBody(`"name":"attack-x"`, `"leaseName":"attack-acme"`)), none, ""},
		{family, "a lease", "agent", post(leases("acme"), leaseBody(`"name":"attack-x"`, base)), none, ""},
		{family, "an image", "agent", patch(mergePatch, imagePath+"/macosimages/"+macOSImage, `{"metadata":{"labels":{"attack":"x"}}}`), none, ""},
		{family, "the configuration", "agent", patch(mergePatch, configPath+"/rackconfigs/default", `{"spec":{"agent":{"offlineAfter":"24h"}}}`), none, ""},
		{family, "a Secret", "agent", get("/api/v1/namespaces/acme/secrets"), none, ""},
		{family, "a Mac's status in the name of no Node", "node-no-one", patch(mergePatch, mac, `{"status":{"bootID":"forged"}}`), none, ""},
		{family, "a Mac in the name of no Node", "node-no-one", get(w.acmeNode()), none, ""},
		{family, "a lease directly in the name of no Node", "node-no-one", call{method: "GET", path: leases("acme"), replica: 1}.do, none, ""},
		{family, "the certificate of another Mac's agent", "agent", certificateOfAnother, forbidden("can only create a node CSR"), ""},
	}
}

// certificateOfAnother requests the certificate of another Node.
func certificateOfAnother(ctx context.Context, w *world, who string) answer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return answer{code: -1, err: err}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + w.globexMac, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return answer{code: -1, err: err}
	}
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	return post("/apis/certificates.k8s.io/v1/certificatesigningrequests", `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"attack-x"},"spec":{"request":"`+request+`","signerName":"kubernetes.io/kube-apiserver-client-kubelet","usages":["digital signature","client auth"]}}`)(ctx, w, who)
}

// show makes a client present a certificate, also to a server that trusts other authorities.
func show(config *tls.Config, pair tls.Certificate) {
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
}

func (w *world) directly() []attempt {
	const family = "direct"
	one := func(w *world) string {
		return fmt.Sprintf("https://127.0.0.1:%d", w.cluster.Port("macrack-apiserver-1"))
	}
	plain := func(w *world) string {
		return fmt.Sprintf("http://127.0.0.1:%d", w.cluster.Port("macrack-apiserver-1"))
	}
	agent := func(w *world) string { return fmt.Sprintf("https://127.0.0.1:%d", w.cluster.Port(w.acmeMac)) }
	trusting := func(certificate func(w *world) (tls.Certificate, error)) func(w *world) (*tls.Config, error) {
		return func(w *world) (*tls.Config, error) {
			config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} // the attacker trusts any server
			if certificate == nil {
				return config, nil
			}
			pair, err := certificate(w)
			show(config, pair)
			return config, err
		}
	}
	nobody := trusting(nil)
	as := func(who string) func(w *world) (*tls.Config, error) {
		return trusting(func(w *world) (tls.Certificate, error) { return w.certificateOf(who) })
	}
	forged := func(name string, groups ...string) func(w *world) (*tls.Config, error) {
		return trusting(func(*world) (tls.Certificate, error) { return forgedCertificate(name, groups...) })
	}
	front := map[string]string{"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "X-Remote-Uid": "1"}
	list := call{method: "GET", path: rackPath + "/macnodeleases"}
	fronted := call{method: "GET", path: rackPath + "/macnodeleases", header: front}
	floor := call{method: "PATCH", path: w.acmeLease(), body: `{"metadata":{"finalizers":null}}`, contentType: mergePatch, header: front}
	refused := want{codes: []int{401, 403}, lacks: w.ours()}
	failed := want{codes: []int{400, 401, 403}, lacks: w.ours()}
	closed := says(0, "remote error: tls:")
	return []attempt{
		{family, "leases, without a certificate", "-", dial(nobody, one, list), refused, ""},
		{family, "leases, as the front proxy without its certificate", "-", dial(nobody, one, fronted), refused, ""},
		{family, "leases, as the front proxy with a tenant's certificate", "-", dial(as("acme"), one, fronted), refused, ""},
		{family, "leases, as the front proxy with its name from the cluster's authority", "-", dial(as("stranger"), one, fronted), refused, ""},
		{family, "leases, as the front proxy with its name from a foreign authority", "-", dial(forged("front-proxy-client"), one, fronted), failed, ""},
		{family, "leases, as an administrator of a foreign authority", "-", dial(forged("admin", "system:masters"), one, list), failed, ""},
		{family, "a floor's finalizer, as the front proxy with an agent's certificate", "-", dial(as("agent"), one, floor), refused, ""},
		{family, "leases, without TLS", "-", dial(nobody, plain, fronted), failed, ""},
		{family, "leases, with an invalid token", "-", dial(nobody, one, call{method: "GET", path: list.path, header: map[string]string{"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."}}), refused, ""},
		{family, "leases, with a password", "-", dial(nobody, one, call{method: "GET", path: list.path, header: map[string]string{"Authorization": "Basic YWRtaW46YWRtaW4="}}), refused, ""},
		{family, "leases, with an old TLS version", "-", dial(func(*world) (*tls.Config, error) {
			return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, nil
		}, one, list), says(0, "protocol version not supported"), ""},
		{family, "leases, with headers of another host", "-", dial(nobody, one, call{method: "GET", path: list.path, header: map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Original-Url": rackPath, "Forwarded": "for=127.0.0.1"}}), refused, ""},
		{family, "metrics, without a certificate", "-", dial(nobody, one, call{method: "GET", path: "/metrics"}), refused, ""},
		{family, "profiles, without a certificate", "-", dial(nobody, one, call{method: "GET", path: "/debug/pprof/"}), refused, ""},
		{family, "the pods of an agent, without a certificate", "-", dial(nobody, agent, call{method: "GET", path: "/pods"}), closed, ""},
		{family, "the pods of an agent, with a foreign certificate", "-", dial(forged("kube-apiserver-kubelet-client", "system:masters"), agent, call{method: "GET", path: "/pods"}), closed, ""},
		{family, "a command on an agent's Mac, without a certificate", "-", dial(nobody, agent, call{method: "POST", path: "/exec/acme/attack-1-vm/vm?command=id&output=1"}), closed, ""},
		{family, "a command on an agent's Mac, as another tenant", "-", dial(as("globex"), agent, call{method: "POST", path: "/exec/acme/attack-1-vm/vm?command=id&output=1"}), closed, ""},
		{family, "the log of another tenant's virtual machine, as a tenant", "-", dial(as("globex"), agent, call{method: "GET", path: "/containerLogs/acme/attack-1-vm/vm"}), closed, ""},
	}
}

func (w *world) etcdAccess() []attempt {
	const family = "etcd"
	url := func(w *world) string { return w.cluster.MacrackEtcd().Servers[0] }
	key := base64.StdEncoding.EncodeToString([]byte("/registry/"))
	end := base64.StdEncoding.EncodeToString([]byte("/registry0"))
	read := call{method: "POST", path: "/v3/kv/range", body: `{"key":"` + key + `","range_end":"` + end + `"}`}
	write := call{method: "POST", path: "/v3/kv/put", body: `{"key":"` + key + `","value":"` + key + `"}`}
	deletion := call{method: "POST", path: "/v3/kv/deleterange", body: `{"key":"` + key + `","range_end":"` + end + `"}`}
	with := func(certificate func(w *world) (tls.Certificate, error)) func(w *world) (*tls.Config, error) {
		return func(w *world) (*tls.Config, error) {
			config, err := etcdTLS(w.cluster.MacrackEtcd(), false)
			if err != nil || certificate == nil {
				return config, err
			}
			pair, err := certificate(w)
			show(config, pair)
			return config, err
		}
	}
	of := func(who string) func(w *world) (*tls.Config, error) {
		return with(func(w *world) (tls.Certificate, error) { return w.certificateOf(who) })
	}
	closed := says(0, "remote error: tls:")
	return []attempt{
		{family, "read without a certificate", "-", dial(with(nil), url, read), closed, ""},
		{family, "written without a certificate", "-", dial(with(nil), url, write), closed, ""},
		{family, "emptied without a certificate", "-", dial(with(nil), url, deletion), closed, ""},
		{family, "read with an administrator's certificate of the cluster", "-", dial(of("admin"), url, read), closed, ""},
		{family, "written with the controllers' certificate", "-", dial(of("controllers"), url, write), closed, ""},
		{family, "emptied with an agent's certificate", "-", dial(of("agent"), url, deletion), closed, ""},
		{family, "read with a certificate of a foreign authority", "-", dial(with(func(*world) (tls.Certificate, error) { return forgedCertificate("root") }), url, read), closed, ""},
		{family, "read without TLS", "-", dial(with(nil), func(w *world) string { return strings.Replace(url(w), "https", "http", 1) }, read), anyOf([]int{0, 400}, "connection reset by peer", "EOF", "HTTP request to an HTTPS server"), ""},
	}
}

func (w *world) impersonation() []attempt {
	const family = "impersonation"
	as := func(replica int, headers ...string) step {
		header := map[string]string{}
		for i := 0; i < len(headers); i += 2 {
			header["Impersonate-"+headers[i]] = headers[i+1]
		}
		return call{method: "GET", path: rackPath + "/macnodeleases", header: header, replica: replica}.do
	}
	const controllers = "system:serviceaccount:macrack-system:macrack-controllers"
	return []attempt{
		{family, "an administrator", "acme", as(0, "User", "admin", "Group", "system:masters"), forbidden("cannot impersonate"), ""},
		{family, "the controllers", "acme-admin", as(0, "User", controllers), forbidden("cannot impersonate"), ""},
		{family, "another tenant", "acme", as(0, "User", "globex"), forbidden("cannot impersonate"), ""},
		{family, "its own user, in another group", "acme", as(0, "User", "acme", "Group", "system:masters"), forbidden("cannot impersonate"), ""},
		{family, "the group of agents", "agent", as(0, "User", "system:node:"+w.globexMac, "Group", "system:nodes"), forbidden("cannot impersonate"), ""},
		{family, "an administrator", "controllers", as(0, "User", "admin", "Group", "system:masters"), forbidden("cannot impersonate"), ""},
		{family, "an administrator", "hardware", as(0, "User", "admin", "Group", "system:masters"), forbidden("cannot impersonate"), ""},
		{family, "an administrator", "anonymous", as(0, "User", "admin", "Group", "system:masters"), forbidden("cannot impersonate"), ""},
		{family, "an administrator, directly", "acme", as(1, "User", "admin", "Group", "system:masters"), noRight(), ""},
		{family, "a UID alone", "acme", as(0, "Uid", "1"), want{codes: []int{400, 403, 500}, lacks: w.ours()}, ""},
		{family, "another tenant, with headers of the front proxy", "acme", call{method: "GET", path: leases("globex"), header: map[string]string{"X-Remote-User": "globex", "X-Remote-Group": "system:masters"}}.do, noRight(), ""},
		{family, "an administrator, with extra headers", "acme", call{method: "GET", path: leases("globex"), header: map[string]string{"X-Remote-Extra-Scopes": "admin", "X-Remote-User": "admin"}}.do, noRight(), ""},
	}
}

func (w *world) escalation() []attempt {
	const family = "escalation"
	role := func(rules string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"attack-x"},"rules":[` + rules + `]}`
	}
	binding := func(kind, role string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"attack-x"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"` + kind + `","name":"` + role + `"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"attack-acme-admin"}]}`
	}
	roles, bindings := rbacPath+"/namespaces/acme/roles", rbacPath+"/namespaces/acme/rolebindings"
	return []attempt{
		{family, "a role that binds and releases", "acme-admin", post(roles, role(`{"apiGroups":["rack.macrack.io"],"resources":["macnodeleases/binding","macnodeleases/release"],"verbs":["create"]}`)), forbidden("grant"), ""},
		{family, "a role that writes statuses", "acme-admin", post(roles, role(`{"apiGroups":["rack.macrack.io","instance.macrack.io"],"resources":["*/status"],"verbs":["*"]}`)), forbidden("grant"), ""},
		{family, "a role with every right", "acme-admin", post(roles, role(`{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}`)), forbidden("grant"), ""},
		{family, "a role that writes records", "acme-admin", post(roles, role(`{"apiGroups":["rack.macrack.io"],"resources":["auditrecords"],"verbs":["create","delete"]}`)), forbidden("grant"), ""},
		{family, "the role of the controllers", "acme-admin", post(bindings, binding("ClusterRole", "macrack-controllers")), forbidden("is attempting to grant"), ""},
		{family, "the role of agents", "acme-admin", post(bindings, binding("ClusterRole", "macrack-agent")), forbidden("is attempting to grant"), ""},
		{family, "the role of the hardware's administrators", "acme-admin", post(bindings, binding("ClusterRole", "macrack-hardware-admin")), forbidden("is attempting to grant"), ""},
		{family, "the role of administrators, in one's own namespace", "acme-admin", post(bindings, binding("ClusterRole", "cluster-admin")), forbidden("is attempting to grant"), ""},
		{family, "a role in another namespace", "acme-admin", post(rbacPath+"/namespaces/globex/rolebindings", binding("ClusterRole", "edit")), noRight(), ""},
		{family, "a role of the cluster that is added to edit", "acme-admin", post(rbacPath+"/clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"attack-x","labels":{"rbac.authorization.k8s.io/aggregate-to-edit":"true"}},"rules":[]}`), noRight(), ""},
		{family, "a binding of the cluster", "hardware", post(rbacPath+"/clusterrolebindings", strings.Replace(binding("ClusterRole", "cluster-admin"), "RoleBinding", "ClusterRoleBinding", 1)), noRight(), ""},
		{family, "a token of the controllers", "acme-admin", post("/api/v1/namespaces/macrack-system/serviceaccounts/macrack-controllers/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), noRight(), ""},
		{family, "a token of the controllers", "agent", post("/api/v1/namespaces/macrack-system/serviceaccounts/macrack-controllers/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), noRight(), ""},
		{family, "Secrets of the product", "acme-admin", get("/api/v1/namespaces/macrack-system/secrets"), noRight(), ""},
		{family, "Secrets of the product", "hardware", get("/api/v1/namespaces/macrack-system/secrets"), noRight(), ""},
		{family, "Secrets of a tenant", "controllers", get("/api/v1/namespaces/acme/secrets"), noRight(), ""},
		{family, "the APIService", "acme-admin", patch(mergePatch, "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.rack.macrack.io", `{"spec":{"insecureSkipTLSVerify":true,"caBundle":null}}`), noRight(), ""},
		{family, "the APIService", "controllers", patch(mergePatch, "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.rack.macrack.io", `{"spec":{"insecureSkipTLSVerify":true,"caBundle":null}}`), noRight(), ""},
		{family, "a webhook on leases", "acme-admin", post("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"attack-x"}}`), noRight(), ""},
		{family, "the namespace, deleted", "acme-admin", remove("/api/v1/namespaces/acme"), noRight(), ""},
	}
}

func (w *world) quotas() []attempt {
	const family = "quota"
	const namespace = "attack-quota"
	const path = "/api/v1/namespaces/" + namespace + "/resourcequotas"
	set := func(ctx context.Context, w *world, limit int) answer {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"macs"},"spec":{"hard":{"count/macnodeleases.rack.macrack.io":"%d"}}}`, limit)
		return patch(applyPatch, path+"/macs", body)(ctx, w, "admin")
	}
	// closed waits until both servers know of a quota of zero. If they learn of a larger one later,
	// they only refuse more.
	closed := func(ctx context.Context, w *world) error {
		if a := set(ctx, w, 0); a.code >= 300 || a.err != nil {
			return fmt.Errorf("setting a quota: %d %s", a.code, short(a.text()))
		}
		return eventually(ctx, func() error {
			for replica := 1; replica <= 2; replica++ {
				a := call{method: "POST", path: leases(namespace), body: leaseBody(`"generateName":"attack-probe-"`, studio), replica: replica}.do(ctx, w, "acme")
				if a.code != http.StatusForbidden || !strings.Contains(a.body, "exceeded quota") {
					remove(leases(namespace))(ctx, w, "admin")
					return fmt.Errorf("server %d knows no quota: %d %s", replica, a.code, short(a.text()))
				}
			}
			return nil
		})
	}
	within := func(limit, n int, each func(i int) step) step {
		return func(ctx context.Context, w *world, who string) answer {
			defer remove(path+"/macs")(ctx, w, "admin")
			defer remove(leases(namespace))(ctx, w, "admin")
			if err := closed(ctx, w); err != nil {
				return answer{code: -1, err: err}
			}
			if limit > 0 {
				if a := set(ctx, w, limit); a.code >= 300 || a.err != nil {
					return answer{code: -1, body: a.text()}
				}
			}
			codes := countCodes(ctx, w, who, n, each)
			if codes[http.StatusCreated]+codes[http.StatusForbidden] != n {
				return answer{code: -1, err: fmt.Errorf("not all requests were granted or refused: codes %v", codes)}
			}
			is := get(leases(namespace))(ctx, w, "admin")
			list := struct {
				Items []json.RawMessage `json:"items"`
			}{}
			if err := json.Unmarshal([]byte(is.body), &list); err != nil {
				return answer{code: -1, err: err}
			}
			if is.code != http.StatusOK || len(list.Items) != codes[http.StatusCreated] {
				return answer{code: -1, body: fmt.Sprintf("%d leases are listed, of %d that were created: %d %s", len(list.Items), codes[http.StatusCreated], is.code, short(is.text()))}
			}
			if len(list.Items) > limit {
				return answer{code: -1, body: fmt.Sprintf("%d leases with a quota of %d", len(list.Items), limit)}
			}
			return answer{code: is.code, body: fmt.Sprintf("%d leases, no more than a quota of %d", len(list.Items), limit)}
		}
	}
	pending := func(i int) step {
		return post(leases(namespace), leaseBody(fmt.Sprintf(`"name":"attack-%d"`, i), studio))
	}
	return []attempt{
		{family, "a lease with a quota of zero", "acme", within(0, 1, pending), says(200, "no more than"), ""},
		{family, "a lease with a quota of zero, by its generated name", "acme", within(0, 3, func(int) step { return post(leases(namespace), leaseBody(`"generateName":"attack-"`, studio)) }), says(200, "no more than"), ""},
		{family, "thirty leases at once with a quota of two, at both servers", "acme", within(2, 30, func(i int) step {
			return call{method: "POST", path: leases(namespace), body: leaseBody(fmt.Sprintf(`"name":"attack-%d"`, i), studio), replica: 1 + i%2}.do
		}), says(200, "no more than"), ""},
		{family, "the quota itself", "acme", post(path, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"more"},"spec":{"hard":{"count/macnodeleases.rack.macrack.io":"99"}}}`), noRight(), ""},
		{family, "the quota of all, deleted", "acme", remove(path), noRight(), ""},
		{family, "the quota itself", "acme-admin", post("/api/v1/namespaces/acme/resourcequotas", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"more"},"spec":{"hard":{"count/macnodeleases.rack.macrack.io":"99"}}}`), noRight(), ""},
	}
}

func (w *world) ledger() []attempt {
	const family = "ledger"
	name := strings.ToLower(w.acmeSerial) + "-000000000001"
	one := records("acme") + "/" + name
	bare := strings.Replace(w.recordBody("Registry", w.acmeMac), `"kind"`, `"metadata":{"name":"`+name+`"},"kind"`, 1)
	attempts := []attempt{
		{family, "a record", "acme", post(records("acme"), w.recordBody("Agent", w.acmeMac)), noRight(), ""},
		{family, "a record", "root", post(records("acme"), w.recordBody("Registry", w.acmeMac)), forbidden("written by the server"), ""},
		{family, "a record", "admin", post(records("acme"), w.recordBody("Agent", w.acmeMac)), forbidden("written by the server"), ""},
		{family, "a record of the registry's layer", "agent", post(records("acme"), w.recordBody("Registry", w.acmeMac)), forbidden("layers"), ""},
		{family, "a record of the scheduler's layer", "agent", post(records("acme"), w.recordBody("Scheduler", w.acmeMac)), forbidden("layers"), ""},
		{family, "a record of the kernel's layer", "controllers", post(records("acme"), w.recordBody("Kernel", w.acmeMac)), forbidden("layers"), ""},
		{family, "a record of another Mac", "agent", post(records("acme"), w.recordBody("Agent", w.globexMac)), forbidden("its own Mac"), ""},
		{family, "a record of an unknown Mac", "controllers", post(records("acme"), w.recordBody("Scheduler", "mac-none")), forbidden("no MacNode"), ""},
		{family, "a record under another Mac's serial number", "agent", post(records("acme"), strings.Replace(w.recordBody("Agent", w.acmeMac), `"chassis":{`, `"chassis":{"serialNumber":"`+w.globexSerial+`",`, 1)), forbidden("serial number"), ""},
		{family, "a record that a lease was released", "agent", post(records("acme"), strings.Replace(w.recordBody("Agent", w.acmeMac), "InstanceRejected", "LeaseReleased", 1)), invalid("Unsupported value"), ""},
		{family, "a record that a Mac recovered", "controllers", post(records("acme"), strings.Replace(w.recordBody("Scheduler", w.acmeMac), "InstanceRejected", "NodeRecovered", 1)), invalid("Unsupported value"), ""},
		{family, "a record with a time of binding", "agent", post(records("acme"), strings.Replace(w.recordBody("Agent", w.acmeMac), `"details":{`, `"details":{"boundAt":"2020-01-01T00:00:00Z",`, 1)), invalid("only the server"), ""},
		{family, "a record with a number, a hash, a time and an actor of one's own", "agent", post(records("acme"), strings.Replace(w.recordBody("Agent", w.acmeMac), `"type"`, `"sequence":1,"previousHash":"00","hash":"00","time":"2001-01-01T00:00:00.000000Z","actor":{"username":"admin"},"requestID":"x","metadata":{"name":"`+name+`","uid":"x"},"type"`, 1)),
			dropped(all(not("00", "hash"), not(float64(1), "sequence"), not("2001-01-01T00:00:00.000000Z", "time"), not("admin", "actor", "username"), not(name, "metadata", "name"))), ""},
		{family, "a record under the name of one that there is", "root", post(records("acme"), bare), forbidden("written by the server"), ""},
	}
	for _, who := range []string{"acme-admin", "hardware", "auditor", "agent", "controllers", "root", "admin"} {
		refused := noRight()
		if who == "root" || who == "admin" {
			refused = noSuchVerb()
		}
		attempts = append(attempts,
			attempt{family, "a record deleted", who, remove(one), refused, ""},
			attempt{family, "all records deleted", who, remove(records("acme")), refused, ""},
			attempt{family, "a record changed", who, patch(mergePatch, one, `{"details":{"message":"nothing happened"}}`), refused, ""},
		)
	}
	return append(attempts,
		attempt{family, "a record changed, by replace", "admin", put(one, bare), noSuchVerb(), ""},
		attempt{family, "a record changed, by apply with force", "admin", patch(applyPatch, one, bare), noSuchVerb(), ""},
		attempt{family, "a record changed, directly", "admin", call{method: "PATCH", path: one, body: `[]`, contentType: jsonPatch, replica: 1}.do, noSuchVerb(), ""},
		attempt{family, "the records of all namespaces deleted", "admin", remove(rackPath + "/auditrecords?gracePeriodSeconds=0"), noSuchVerb(), ""},
		attempt{family, "a record deleted although it cannot be read", "admin", remove(one + "?ignoreStoreReadErrorWithClusterBreakingPotential=true"), noSuchVerb(), ""},
		attempt{family, "a report", "root", post(rackPath+"/compliancereports", `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"ComplianceReport","metadata":{"name":"90d"}}`), noSuchVerb(), ""},
		attempt{family, "a report of less than no time", "auditor", get(rackPath + "/compliancereports/-1d"), says(404, "named after its window"), ""},
		attempt{family, "a report of all time and more", "auditor", get(rackPath + "/compliancereports/9999999999999999999d"), says(404, "named after its window"), ""},
		attempt{family, "a report of a window that runs backwards", "auditor", get(rackPath + "/compliancereports/2026-11-01..2026-08-01"), says(404, "ends before it begins"), ""},
		attempt{family, "a report of days that are none", "auditor", get(rackPath + "/compliancereports/2026-02-30..2026-13-45"), says(404, "is not a date"), ""},
		attempt{family, "a report of a day without hours", "auditor", get(rackPath + "/compliancereports/NaNd"), says(404, "named after its window"), ""},
	)
}
