package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// stolenControllers are the attempts with stolen credentials of macrack-controllers: to run pods of
// their own, to get at the Secrets and tokens of others, and to do what the controllers never do.
func (w *world) stolenControllers() []attempt {
	const family, who = "controllers", "controllers"
	const pods, system = "/api/v1/namespaces/acme/pods", "/api/v1/namespaces/kube-system/pods"
	// The policy names one reason: the first of its validations that fails.
	reserved, owned := forbidden("controllers create no pods in the system's namespaces"), forbidden("with one owner, a MacOSInstance")
	container, account := forbidden("one container of the image macrack.io/macos-vm:placeholder"), forbidden("no ServiceAccount but default")
	host, placed := forbidden("no namespaces of the host, no root, no privileges"), forbidden("the required node affinity names one Node")
	slot, taint := forbidden("requests and limits of macrack.io/macos-vm must be 1"), forbidden("a placeholder pod may tolerate only the taint of its namespace")
	placeholder := func(old, replacement string) step { return w.forgedPlaceholder("acme", old, replacement) }
	plain := podBody(`"name":"attack-x"`, `"restartPolicy":"Never"`)
	// kube-apiserver itself refuses any other pod in the product's namespace.
	restricted := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"attack-x"},"spec":{"securityContext":{"runAsNonRoot":true,"runAsUser":65532,"seccompProfile":{"type":"RuntimeDefault"}},` +
		`"containers":[{"name":"c","image":"registry.example.com/c:1","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`
	token := podBody(`"name":"attack-x"`, `"serviceAccountName":"clusterrole-aggregation-controller"`)
	secret := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"attack-x"},"spec":{"containers":[{"name":"c","image":"registry.example.com/c:1","envFrom":[{"secretRef":{"name":"attack"}}]}]}}`
	node, image := "/api/v1/nodes/"+w.acmeMac, `{"spec":{"containers":[{"name":"macos-vm","image":"registry.example.com/evil:1"}]}}`
	return []attempt{
		{family, "a pod of cluster-admin's in kube-system", who, post(system, token), reserved, ""},
		{family, "a pod in the product's namespace", who, post("/api/v1/namespaces/macrack-system/pods", restricted), reserved, ""},
		{family, "a placeholder pod in kube-system", who, w.forgedPlaceholder("kube-system", "", ""), reserved, ""},
		{family, "a placeholder pod among the images' Secrets", who, w.forgedPlaceholder("macrack-images", "", ""), reserved, ""},
		{family, "an ordinary pod", who, post(pods, plain), owned, ""},
		{family, "an ordinary pod, tried out", who, post(pods+"?dryRun=All", plain), owned, ""},
		{family, "a pod with a tenant's Secret", who, post(pods, secret), owned, ""},
		{family, "a placeholder pod without an instance", who, placeholder(`"kind":"MacOSInstance"`, `"kind":"Job"`), owned, ""},
		{family, "a placeholder pod of another image", who, placeholder("macrack.io/macos-vm:placeholder", "registry.example.com/evil:1"), container, ""},
		{family, "a placeholder pod with a command", who, placeholder(`"name":"macos-vm"`, `"name":"macos-vm","command":["sh"]`), container, ""},
		{family, "a placeholder pod with a tenant's Secret", who, placeholder(`"name":"macos-vm"`, `"name":"macos-vm","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"attack","key":"a"}}}]`), container, ""},
		{family, "a placeholder pod with a tenant's Secret as a volume", who, placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","volumes":[{"name":"a","secret":{"secretName":"attack"}}]`), account, ""},
		{family, "a placeholder pod with the Node's disk", who, placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","volumes":[{"name":"a","hostPath":{"path":"/"}}]`), account, ""},
		// kube-apiserver mounts the token in the container before the policy looks.
		{family, "a placeholder pod with a token", who, placeholder(`"automountServiceAccountToken":false`, `"automountServiceAccountToken":true`), container, ""},
		{family, "a placeholder pod with another account", who, withAccount("attack", placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","serviceAccountName":"attack"`)), account, ""},
		{family, "a placeholder pod on the Node's network", who, placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","hostNetwork":true`), host, ""},
		{family, "a placeholder pod among the Node's processes", who, placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","hostPID":true`), host, ""},
		{family, "a placeholder pod with privileges", who, placeholder(`"allowPrivilegeEscalation":false`, `"allowPrivilegeEscalation":true`), host, ""},
		{family, "a placeholder pod with capabilities", who, placeholder(`"drop":["ALL"]`, `"add":["SYS_ADMIN"]`), host, ""},
		{family, "a placeholder pod as root", who, placeholder(`"runAsUser":65532`, `"runAsUser":0`), host, ""},
		{family, "a placeholder pod of two containers", who, placeholder(`"containers":[`, `"containers":[{"name":"c","image":"registry.example.com/evil:1"},`), container, ""},
		{family, "a placeholder pod that begins with another container", who, placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","initContainers":[{"name":"i","image":"registry.example.com/evil:1"}]`), container, ""},
		{family, "a placeholder pod for two virtual machines", who, placeholder(`"macrack.io/macos-vm":"1"`, `"macrack.io/macos-vm":"2"`), slot, ""},
		{family, "a placeholder pod without a virtual machine", who, placeholder(`"macrack.io/macos-vm":"1"`, `"cpu":"1"`), slot, ""},
		{family, "a placeholder pod for another tenant's Mac", who, placeholder(`"value":"acme"`, `"value":"globex"`), taint, ""},
		{family, "a placeholder pod for an unleased Mac", who, placeholder(`"key":"macrack.io/tenant","operator":"Equal","value":"acme"`, `"key":"macrack.io/unleased","operator":"Exists"`), taint, ""},
		{family, "a placeholder pod that tolerates the control plane's taint", who, placeholder(`"tolerations":[`, `"tolerations":[{"key":"node-role.kubernetes.io/control-plane","operator":"Exists"},`), taint, ""},
		{family, "a placeholder pod past the scheduler", who, placeholder(`"restartPolicy":"Never"`, `"restartPolicy":"Never","nodeName":"`+w.acmeMac+`"`), placed, ""},
		{family, "a placeholder pod for any Node", who, placeholder(`"affinity"`, `"x-affinity"`), placed, ""},
		{family, "a placeholder pod bound to another Node", who, post(pods+"/attack-1-vm/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"attack-1-vm"},"target":{"kind":"Node","name":"`+w.globexMac+`"}}`), noRight(), ""},
		{family, "another image in a placeholder pod", who, patch(strategicPatch, pods+"/attack-1-vm", image), forbidden("change only the labels and annotations macrack.io/*"), ""},
		{family, "another image in a pod of a tenant's", who, w.withPod(patch(strategicPatch, pods+"/attack-pod", `{"spec":{"containers":[{"name":"c","image":"registry.example.com/evil:1"}]}}`)), owned, ""},
		{family, "a tenant's pod deleted", who, w.withPod(remove(pods + "/attack-pod")), forbidden("change and delete only placeholder pods"), ""},
		{family, "a tenant's pods deleted", who, call{method: http.MethodDelete, path: pods}.do, noRight(), ""},
		{family, "a command in a placeholder pod", who, post(pods+"/attack-1-vm/exec?command=id&stdout=1", ""), noRight(), ""},
		{family, "a container added to a pod", who, patch(strategicPatch, pods+"/attack-1-vm/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"registry.example.com/evil:1"}]}}`), noRight(), ""},
		{family, "an eviction", who, post(pods+"/attack-1-vm/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"attack-1-vm"}}`), noRight(), ""},
		{family, "a label of a tenant's on a placeholder pod, for a Service to find it", who, patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"labels":{"app":"web"}}}`), forbidden("change only the labels and annotations macrack.io/*"), ""},
		{family, "a label of a placeholder pod's on another", who, w.withPod(patch(mergePatch, pods+"/attack-pod", `{"metadata":{"labels":{"macrack.io/instance":"attack-1"}}}`)), owned, ""},
		{family, "a placeholder pod given to a ReplicaSet", who, patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"x","uid":"x","controller":true}]}}`), owned, ""},
		{family, "a PodDisruptionBudget for all pods", who, post("/apis/policy/v1/namespaces/acme/poddisruptionbudgets", `{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"attack-x"},"spec":{"minAvailable":1,"selector":{}}}`), forbidden("that a MacOSInstance owns"), ""},
		{family, "a tenant's Secrets", who, get("/api/v1/namespaces/acme/secrets"), noRight(), ""},
		{family, "a token of an account in kube-system", who, post("/api/v1/namespaces/kube-system/serviceaccounts/clusterrole-aggregation-controller/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`), noRight(), ""},
		{family, "a label on the Node of a Mac", who, patch(mergePatch, node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), forbidden("change only the taints macrack.io/*"), ""},
		{family, "the Node of a Mac cordoned", who, patch(mergePatch, node, `{"spec":{"unschedulable":true}}`), forbidden("change only the taints macrack.io/*"), ""},
		{family, "the status of a Mac's Node", who, patch(mergePatch, node+"/status", `{"status":{"capacity":{"macrack.io/macos-vm":"2"}}}`), noRight(), ""},
		{family, "a taint on a Node that is not a Mac", who, w.withLinuxNode(patch(mergePatch, "/api/v1/nodes/attack-linux", `{"spec":{"taints":[{"key":"macrack.io/unleased","effect":"NoSchedule"}]}}`)), forbidden("only to the Nodes of Macs"), ""},
		// Other objects, and the metadata of placeholder pods.
		{family, "the instance of a placeholder pod changed", "acme", patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"labels":{"macrack.io/instance":"attack-2"}}}`), forbidden("only MacRack's controllers set them"), ""},
		{family, "the instance of a placeholder pod removed", "root", patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"labels":null,"annotations":null}}`), forbidden("of a placeholder pod cannot be removed"), ""},
		{family, "the instance of a placeholder pod removed, by its status", "agent", patch(mergePatch, pods+"/attack-1-vm/status", `{"metadata":{"annotations":null}}`), forbidden("of a placeholder pod cannot be removed"), ""},
		{family, "the owner of a placeholder pod cleared", "acme", patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"ownerReferences":null}}`), forbidden("the owner of a placeholder pod is its MacOSInstance and cannot be changed"), ""},
		{family, "a finalizer on a placeholder pod", "acme", patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"finalizers":["example.com/x"]}}`), forbidden("cannot have finalizers"), ""},
		{family, "a placeholder pod said to be in maintenance", "acme", patch(mergePatch, pods+"/attack-1-vm", `{"metadata":{"annotations":{"macrack.io/maintenance":"true"}}}`), forbidden("only MacRack's controllers set them"), ""},
		{family, "a placeholder pod deleted", "acme", remove(pods + "/attack-1-vm"), forbidden("a placeholder pod cannot be deleted before its MacOSInstance"), ""},
		{family, "a placeholder pod deleted by force", "root", remove(pods + "/attack-1-vm?gracePeriodSeconds=0"), forbidden("a placeholder pod cannot be deleted before its MacOSInstance"), ""},
		{family, "a placeholder pod evicted", "root", post(pods+"/attack-1-vm/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"attack-1-vm"}}`), says(http.StatusTooManyRequests, "disruption budget"), ""},
		{family, "a pod of one's own as an instance's", "acme", post(pods, podBody(`"name":"attack-x","labels":{"macrack.io/instance":"attack-1"}`, `"restartPolicy":"Never"`)), forbidden("only MacRack's controllers set them"), ""},
		{family, "the Node of a Mac deleted", who, remove(node), noRight(), ""},
		{family, "a lock of the control plane's", who, get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"), noRight(), ""},
		{family, "a class", who, patch(mergePatch, rackPath+"/macnodeclasses/base", `{"metadata":{"labels":{"attack":"x"}}}`), noRight(), ""},
		{family, "an image", who, patch(mergePatch, imagePath+"/macosimages/"+macOSImage, `{"metadata":{"labels":{"attack":"x"}}}`), noRight(), ""},
		{family, "an instance deleted", who, remove(instances("acme") + "/attack-1"), noRight(), ""},
	}
}

// forgedPlaceholder creates the pod of an instance again under another name, as the controllers
// created it, with a part of it replaced.
func (w *world) forgedPlaceholder(namespace, old, replacement string) step {
	return func(ctx context.Context, w *world, who string) answer {
		pod := map[string]any{}
		if a := get("/api/v1/namespaces/acme/pods/attack-1-vm")(ctx, w, "admin"); json.Unmarshal([]byte(a.body), &pod) != nil || a.code != http.StatusOK {
			return answer{err: fmt.Errorf("reading the placeholder pod: %d %s", a.code, short(a.text()))}
		}
		metadata, spec := pod["metadata"].(map[string]any), pod["spec"].(map[string]any)
		delete(spec, "nodeName")
		delete(spec, "serviceAccountName")
		delete(spec, "serviceAccount")
		body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": map[string]any{
			"name": "attack-x", "labels": metadata["labels"], "annotations": metadata["annotations"], "ownerReferences": metadata["ownerReferences"],
		}})
		if err != nil {
			return answer{err: err}
		}
		forged := strings.ReplaceAll(string(body), old, replacement)
		if old == "" {
			forged = string(body)
		} else if forged == string(body) {
			return answer{err: fmt.Errorf("a placeholder pod has no %s: %s", old, body)}
		}
		return post("/api/v1/namespaces/"+namespace+"/pods", forged)(ctx, w, who)
	}
}

// withAccount does it while there is a ServiceAccount in tenant acme's namespace: kube-apiserver
// itself refuses a pod without one.
func withAccount(name string, do step) step {
	return func(ctx context.Context, w *world, who string) answer {
		const accounts = "/api/v1/namespaces/acme/serviceaccounts"
		if err := w.make(ctx, accounts, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"`+name+`"}}`); err != nil {
			return answer{err: err}
		}
		defer remove(accounts+"/"+name)(ctx, w, "admin")
		return do(ctx, w, who)
	}
}

// withPod does it while there is an ordinary pod in tenant acme's namespace.
func (w *world) withPod(do step) step {
	return func(ctx context.Context, w *world, who string) answer {
		const pods = "/api/v1/namespaces/acme/pods"
		if err := w.make(ctx, pods, podBody(`"name":"attack-pod"`, `"nodeSelector":{"kubernetes.io/os":"linux"}`)); err != nil {
			return answer{err: err}
		}
		defer remove(pods+"/attack-pod?gracePeriodSeconds=0")(ctx, w, "admin")
		return do(ctx, w, who)
	}
}

// withLinuxNode runs the step while there is a Node that is not a Mac.
func (w *world) withLinuxNode(do step) step {
	return func(ctx context.Context, w *world, who string) answer {
		if err := w.make(ctx, "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"attack-linux","labels":{"kubernetes.io/os":"linux"}},"spec":{"unschedulable":true}}`); err != nil {
			return answer{err: err}
		}
		defer remove("/api/v1/nodes/attack-linux")(ctx, w, "admin")
		return do(ctx, w, who)
	}
}
