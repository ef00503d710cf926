package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"

	"macrack.io/macrack/test/cluster/etcd"
)

// usesOfTenants are the everyday uses of tenants.
func (w *world) usesOfTenants() []use {
	ok, created := ignored(), want{codes: []int{http.StatusCreated}}
	lease, one := w.acmeLease(), instances("acme")+"/attack-1"
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	return []use{
		{"to see its lease Bound", "acme", get(lease), says(200, `"phase":"Bound"`)},
		{"to see its leases as a table", "acme", call{method: "GET", path: leases("acme"), accept: table}.do, says(200, "Bound")},
		{"to see its leases directly", "acme", call{method: "GET", path: leases("acme"), replica: 2}.do, says(200, w.acmeUID)},
		{"to see its leases by their Mac", "acme", get(leases("acme") + "?fieldSelector=status.nodeName%3D" + w.acmeMac), says(200, w.acmeUID)},
		{"to watch its leases", "acme", get(leases("acme") + "?watch=1&timeoutSeconds=1&resourceVersion=0"), says(200, w.acmeUID)},
		{"to page through its instances", "acme", get(instances("acme") + "?limit=1"), says(200, `"continue":"`)},
		{"to see its instance run", "acme", get(one), says(200, `"phase":"Running"`)},
		{"to lengthen a lease, by a merge patch", "acme", patch(mergePatch, lease, `{"spec":{"minimumDuration":"24h30m"}}`), want{codes: []int{200, 422}}},
		{"to lengthen a lease, by a JSON patch", "acme", patch(jsonPatch, lease, `[{"op":"add","path":"/spec/minimumDuration","value":"25h"}]`), says(200, `"minimumDuration":"25h"`)},
		{"to label a lease, by a merge patch", "acme", patch(mergePatch, lease, `{"metadata":{"labels":{"team":"ios"}}}`), says(200, `"team":"ios"`)},
		{"to label an instance, by a strategic merge patch", "acme", patch(strategicPatch, one, `{"metadata":{"labels":{"team":"ios"}}}`), says(200, `"team":"ios"`)},
		{"to annotate an instance, by apply", "acme", patch(applyPatch, one, `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{"name":"attack-1","annotations":{"note":"x"}}}`), says(200, `"note":"x"`)},
		{"to write a lease back as it was read", "acme", change(lease, lease, func(map[string]any) {}), ok},
		{"to add a finalizer to a lease, and remove it", "acme", both(patch(mergePatch, lease, `{"metadata":{"finalizers":["macrack.io/floor","example.com/x"]}}`), patch(mergePatch, lease, `{"metadata":{"finalizers":["macrack.io/floor"]}}`)), ok},
		{"to request a lease of a class without a free Mac, and withdraw it", "acme", stored(leases("acme"), leaseBody(`"generateName":"attack-"`, studio)), says(201, `"phase":"Pending"`)},
		{"to request a lease in YAML, and withdraw it", "acme", both(call{method: "POST", path: leases("acme"), contentType: "application/yaml",
			body: "apiVersion: rack.macrack.io/v1alpha1\nkind: MacNodeLease\nmetadata:\n  name: attack-yaml\nspec:\n  className: studio\n  minimumDuration: 36h\n  expireAfter: 48h\n"}.do, remove(leases("acme")+"/attack-yaml")), ok},
		{"to request a lease by apply, and withdraw it", "acme", both(patch(applyPatch, leases("acme")+"/attack-apply", leaseBody(`"name":"attack-apply"`, studio)), remove(leases("acme")+"/attack-apply")), ok},
		{"to request a lease of three years, and withdraw it", "acme", stored(leases("acme"), leaseBody(`"name":"attack-long"`, studio+`,"minimumDuration":"26280h"`)), created},
		{"to create an instance as a dry run", "globex", post(instances("globex")+"?dryRun=All", instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex","resources":{"requests":{"macrack.io/macos-vm":"1000m"}}`)), created},
		{"to run an instance until it runs, stop it and delete it", "globex", w.life, says(200, "Stopped")},
		{"to see the catalogue of Macs", "acme", get(rackPath + "/macnodeclasses"), says(200, "studio")},
		{"to see the catalogue of instances", "acme", get(instancePath + "/instanceclasses"), says(200, "small")},
		{"to see the images", "acme", get(imagePath + "/macosimages"), says(200, macOSImage)},
		{"to see its records", "acme", get(records("acme")), says(200, "LeaseBound")},
		{"to see its records as a table", "acme", call{method: "GET", path: records("acme"), accept: table}.do, says(200, "InstanceStarted")},
		{"to see its use of Macs", "acme", get(rackPath + "/namespaces/acme/usagereports/7d"), says(200, `"billableDays"`)},
		{"to have its rights checked", "acme", post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"namespace":"acme","group":"rack.macrack.io","resource":"macnodeleases","verb":"create"}}}`), says(201, `"allowed":true`)},
		{"to run an ordinary pod", "acme", both(post("/api/v1/namespaces/acme/pods", podBody(`"name":"attack-pod"`, `"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists"}]`)), remove("/api/v1/namespaces/acme/pods/attack-pod?gracePeriodSeconds=0")), ok},
		{"to run a pod on Linux that tolerates every taint", "acme", both(post("/api/v1/namespaces/acme/pods", podBody(`"name":"attack-pod"`, `"tolerations":[{"operator":"Exists"}],"nodeSelector":{"kubernetes.io/os":"linux"}`)), remove("/api/v1/namespaces/acme/pods/attack-pod?gracePeriodSeconds=0")), ok},
		{"to grant its rights to a colleague", "acme-admin", both(post(rbacPath+"/namespaces/acme/rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"attack-colleague"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"colleague"}]}`), remove(rbacPath+"/namespaces/acme/rolebindings/attack-colleague")), ok},
	}
}

// usesOfOthers are the uses of administrators, auditors, agents and the controllers.
func (w *world) usesOfOthers() []use {
	ok := ignored()
	mac := w.acmeNode() + "/status"
	const images = imagePath + "/macosimages"
	return []use{
		{"to see the Macs", "hardware", get(rackPath + "/macnodes"), says(200, w.acmeSerial)},
		{"to see the lease of a Mac", "hardware", call{method: "GET", path: w.acmeNode(), accept: "application/json;as=Table;v=v1;g=meta.k8s.io"}.do, says(200, "attack-acme")},
		{"to add a Mac and remove it", "hardware", stored(rackPath+"/macnodes", macNodeBody("attack-mac", "SIM7777777")), says(201, `"phase":"Pending"`)},
		{"to set the location of a Mac", "hardware", patch(mergePatch, w.acmeNode(), `{"spec":{"location":{"shelf":"1"}}}`), ok},
		{"to set a leased Mac to maintenance, and back", "hardware", both(patch(mergePatch, w.acmeNode(), `{"spec":{"maintenance":true}}`), patch(mergePatch, w.acmeNode(), `{"spec":{"maintenance":false}}`)), says(200, `"phase":"Leased"`)},
		{"to add an image and remove it", "hardware", stored(images, imageBody("attack-image", goodContents, goodReference)), says(201, "Xcode")},
		{"to add an image of a beta with a date in its tag", "hardware", stored(images, imageBody("attack-image", strings.Replace(goodContents, `"26.1"`, `"26.2-beta3"`, 1), "registry.example.com/acme/26:macos-26.2-beta3_20260801-r2")), says(201, "beta3")},
		{"to add an instance class and remove it", "hardware", stored(instancePath+"/instanceclasses", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"InstanceClass","metadata":{"name":"attack-class"},"spec":{"resources":{"cpu":"2","memory":"4Gi","storage":"32Gi"}}}`), want{codes: []int{201}}},
		{"to change the configuration", "hardware", patch(mergePatch, configPath+"/rackconfigs/default", `{"spec":{"audit":{"retention":"9600h"}}}`), ok},
		{"to see a report of compliance", "auditor", get(rackPath + "/compliancereports/90d"), says(200, `"verdict":"Compliant"`)},
		{"to see a report of some days", "auditor", get(rackPath + "/compliancereports/2026-01-01..2026-02-01"), ok},
		{"to see the use of Macs by all tenants", "auditor", get(rackPath + "/usagereports"), says(200, `"namespace":"globex"`)},
		{"to see the records of all tenants", "auditor", get(rackPath + "/auditrecords?limit=10"), says(200, "LeaseBound")},
		{"to see its own Mac", "agent", get(w.acmeNode()), says(200, w.acmeSerial)},
		{"to watch its own Mac", "agent", get(rackPath + "/macnodes?watch=1&timeoutSeconds=1&resourceVersion=0&fieldSelector=metadata.name%3D" + w.acmeMac), says(200, w.acmeSerial)},
		{"to see the instances on its own Mac", "agent", get(instancePath + "/macosinstances?fieldSelector=status.nodeName%3D" + w.acmeMac), says(200, "attack-1")},
		{"to report its storage healthy", "agent", patch(strategicPatch, mac, `{"status":{"conditions":[{"type":"StorageHealthy","status":"True","reason":"Checked","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`), ok},
		{"to report its rejection", "agent", post(records("acme"), w.recordBody("Agent", w.acmeMac)), says(201, "Attack")},
		{"to report the scheduler's rejection", "controllers", post(records("acme"), w.recordBody("Scheduler", w.acmeMac)), says(201, "Attack")},
		{"to write an unchanged floor, in another time zone", "controllers", w.sameFloor, ok},
		{"to read macrack's etcd with the certificate for it", "-", dial(func(w *world) (*tls.Config, error) { return etcd.TLS(w.cluster.MacrackEtcd()) },
			func(w *world) string { return w.cluster.MacrackEtcd().Servers[0] }, call{method: "POST", path: "/v3/kv/range", body: `{"key":"L3JlZ2lzdHJ5Lw==","range_end":"L3JlZ2lzdHJ5MA==","count_only":true}`}), says(200, `"count"`)},
		{"to see everything", "root", get(rackPath + "/macnodeleases"), says(200, w.globexUID)},
	}
}

// holds is a tenant that deletes its lease before the floor.
func (w *world) holds() []use {
	return []use{
		{"to delete a lease before its floor, so that it is Held", "globex", remove(w.globexLease()), says(200, `"phase":"Held"`)},
		{"to see it Held", "globex", get(w.globexLease()), says(200, `"phase":"Held"`)},
		{"to see the record of it", "globex", get(records("globex")), says(200, "LeaseHeld")},
		{"to create an instance on it as a dry run", "globex", post(instances("globex")+"?dryRun=All", instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex"`)), want{codes: []int{201}}},
	}
}

// both runs one step, and then another if the first succeeded.
func both(first, second step) step {
	return func(ctx context.Context, w *world, who string) answer {
		if a := first(ctx, w, who); a.code >= 300 || a.err != nil {
			return a
		}
		return second(ctx, w, who)
	}
}

// life is the life of an instance.
func (w *world) life(ctx context.Context, _ *world, who string) answer {
	return w.live(ctx, who, func(context.Context, *world, string) answer { return answer{code: http.StatusOK} })
}

// live is the life of an instance with a step taken while it runs.
func (w *world) live(ctx context.Context, who string, meanwhile step) answer {
	path := instances(who) + "/attack-life"
	if a := post(instances(who), instanceBody(`"name":"attack-life"`, `"leaseName":"attack-`+who+`","startupScript":"true"`))(ctx, w, who); a.code != http.StatusCreated {
		return a
	}
	reaches := func(phase string) answer {
		var a answer
		err := eventually(ctx, func() error {
			if a = get(path)(ctx, w, who); !strings.Contains(a.body, `"phase":"`+phase+`"`) {
				return fmt.Errorf("it does not become %s: %s", phase, short(a.text()))
			}
			return nil
		})
		if err != nil {
			return answer{err: err}
		}
		return a
	}
	if a := reaches("Running"); a.err != nil {
		return a
	}
	if a := meanwhile(ctx, w, who); a.code != http.StatusOK {
		return a
	}
	if a := post(path+"/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","gracePeriodSeconds":1,"reason":"done"}`)(ctx, w, who); a.code != http.StatusCreated {
		return a
	}
	stopped := reaches("Stopped")
	if stopped.err != nil {
		return stopped
	}
	if a := remove(path)(ctx, w, who); a.code >= 300 {
		return a
	}
	err := eventually(ctx, func() error {
		if a := get(path)(ctx, w, who); a.code != http.StatusNotFound {
			return fmt.Errorf("it does not go: %d %s", a.code, short(a.text()))
		}
		return nil
	})
	if err != nil {
		return answer{err: err}
	}
	return stopped
}

// sameFloor writes the floor of a lease as the same moment in another time zone.
func (w *world) sameFloor(ctx context.Context, _ *world, who string) answer {
	var failed error
	a := change(w.acmeLease(), w.acmeLease()+"/status", func(obj map[string]any) {
		status := obj["status"].(map[string]any)
		status["earliestReleaseAt"], failed = inZone(fmt.Sprint(status["earliestReleaseAt"]))
	})(ctx, w, who)
	if failed != nil {
		return answer{err: failed}
	}
	return a
}
