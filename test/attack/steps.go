package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// steps are the steps of the verb run.
var steps = map[string]func(args map[string]string) step{
	"certificateOfAnother": func(map[string]string) step { return certificateOfAnother },
	"mirrorPod":            func(args map[string]string) step { return mirrorPod(args["namespace"]) },
	"placeholder": func(args map[string]string) step {
		return forgedPlaceholder(args["namespace"], args["old"], args["new"])
	},
	"retired": func(map[string]string) step { return retired },
}

// givens are objects that exist while an attempt is made.
var givens = map[string]func(do step) step{"account": withAccount, "linuxNode": withLinuxNode, "pod": withPod}

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
	body, err := clientRequest("attack-retired")
	if err != nil {
		return answer{err: err}
	}
	return as(csrsPath, body)
}

// clientRequest returns a CertificateSigningRequest for the client certificate of a Node.
func clientRequest(node string) (string, error) {
	request, err := certificateRequest(nodeSubject(node))
	return `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"attack-x"},"spec":{"request":"` + base64.StdEncoding.EncodeToString(request) +
		`","signerName":"kubernetes.io/kube-apiserver-client-kubelet","usages":["digital signature","client auth"]}}`, err
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

// certificateOfAnother requests the certificate of another Node.
func certificateOfAnother(ctx context.Context, w *world, who string) answer {
	body, err := clientRequest(w.globexMac)
	if err != nil {
		return answer{code: -1, err: err}
	}
	return post(csrsPath, body)(ctx, w, who)
}

// forgedPlaceholder creates the pod of an instance again under another name, as the controllers
// created it, with a part of it replaced.
func forgedPlaceholder(namespace, old, replacement string) step {
	if namespace == "" {
		namespace = "acme"
	}
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
func withAccount(do step) step {
	return func(ctx context.Context, w *world, who string) answer {
		const accounts = "/api/v1/namespaces/acme/serviceaccounts"
		if err := w.make(ctx, accounts, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"attack"}}`); err != nil {
			return answer{err: err}
		}
		defer remove(accounts+"/attack")(ctx, w, "admin")
		return do(ctx, w, who)
	}
}

// withPod does it while there is an ordinary pod in tenant acme's namespace.
func withPod(do step) step {
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
func withLinuxNode(do step) step {
	return func(ctx context.Context, w *world, who string) answer {
		if err := w.make(ctx, "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"attack-linux","labels":{"kubernetes.io/os":"linux"}},"spec":{"unschedulable":true}}`); err != nil {
			return answer{err: err}
		}
		defer remove("/api/v1/nodes/attack-linux")(ctx, w, "admin")
		return do(ctx, w, who)
	}
}
