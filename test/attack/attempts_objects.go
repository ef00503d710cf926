package main

import (
	"fmt"
	"strings"
)

const base, studio = `"className":"base"`, `"className":"studio"` // only the first has Macs

func (w *world) acmeLease() string   { return leases("acme") + "/attack-acme" }
func (w *world) globexLease() string { return leases("globex") + "/attack-globex" }
func (w *world) acmeNode() string    { return rackPath + "/macnodes/" + w.acmeMac }
func (w *world) globexNode() string  { return rackPath + "/macnodes/" + w.globexMac }

func (w *world) forgedCreations() []attempt {
	const family = "create"
	lease := func(metadata, spec string) step {
		return post(leases("acme"), leaseBody(`"name":"attack-x"`+metadata, spec))
	}
	mine := func(spec string) step {
		return post(instances("globex"), instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex",`+spec))
	}
	requests := func(list string) step { return mine(`"resources":{"requests":{` + list + `}}`) }
	forgedStatus := `"phase":"Bound","nodeName":"` + w.acmeMac + `","boundAt":"2020-01-01T00:00:00Z","earliestReleaseAt":"2020-01-02T00:00:00Z"`
	return []attempt{
		{family, "a lease with the floor's finalizer", "acme", stored(leases("acme"), leaseBody(`"name":"attack-x","finalizers":["macrack.io/floor"]`, studio)), dropped(field(nil, "metadata", "finalizers")), ""},
		{family, "a lease with a finalizer of a MacRack subdomain", "acme", lease(`,"finalizers":["rack.macrack.io/floor"]`, base), invalid("only the server adds finalizers"), ""},
		{family, "a lease with the status Bound", "acme", stored(leases("acme"), leaseWith(`"name":"attack-x"`, studio, forgedStatus)),
			dropped(all(field("Pending", "status", "phase"), field(nil, "status", "nodeName"), field(nil, "status", "boundAt"), field(nil, "status", "earliestReleaseAt"))), ""},
		{family, "a lease with the system's metadata forged", "acme", stored(leases("acme"), leaseBody(`"name":"attack-x","uid":"00000000-0000-0000-0000-000000000001","creationTimestamp":"2001-01-01T00:00:00Z","deletionTimestamp":"2001-01-01T00:00:00Z","deletionGracePeriodSeconds":0,"generation":99,"selfLink":"/x"`, studio)),
			dropped(all(not("00000000-0000-0000-0000-000000000001", "metadata", "uid"), not("2001-01-01T00:00:00Z", "metadata", "creationTimestamp"), field(nil, "metadata", "deletionTimestamp"), field(float64(1), "metadata", "generation"))), ""},
		{family, "a lease with a resourceVersion", "acme", stored(leases("acme"), leaseBody(`"name":"attack-x","resourceVersion":"1"`, studio)), dropped(not("1", "metadata", "resourceVersion")), ""},
		{family, "a lease whose body is of another namespace", "acme", lease(`,"namespace":"globex"`, base), badRequest("namespace"), ""},
		{family, "a lease of another kind in its body", "acme", post(leases("acme"), strings.Replace(leaseBody(`"name":"attack-x"`, base), "MacNodeLease", "MacNode", 1)), badRequest("MacNode"), ""},
		{family, "a lease of another version in its body", "acme", post(leases("acme"), strings.Replace(leaseBody(`"name":"attack-x"`, base), "v1alpha1", "v1", 1)), badRequest("no kind"), ""},
		{family, "a lease of the Mac of another tenant, by its serial number", "acme", lease("", base+`,"serialNumber":"`+w.globexSerial+`"`), forbidden("rule 2"), "CrossTenantRejected/MacIsLeased"},
		{family, "another lease of the same Mac", "acme", lease("", base+`,"serialNumber":"`+w.acmeSerial+`"`), forbidden("already belongs to lease"), ""},
		{family, "a lease of an unknown Mac", "acme", lease("", base+`,"serialNumber":"SIM9999999"`), forbidden("it does not exist, or it belongs to another lease"), ""},
		{family, "a lease of an unknown class", "acme", lease("", `"className":"free"`), invalid("there is no such class"), ""},
		{family, "a lease with an unknown field, strictly", "acme", post(leases("acme")+"?fieldValidation=Strict", leaseBody(`"name":"attack-x"`, base+`,"nodeName":"`+w.globexMac+`"`)), badRequest("unknown field"), ""},
		{family, "a lease with the same field twice, strictly", "acme", post(leases("acme")+"?fieldValidation=Strict", leaseBody(`"name":"attack-x"`, base+`,"minimumDuration":"24h","minimumDuration":"1h"`)), badRequest("duplicate field"), ""},
		{family, "a lease with the same field twice", "acme", lease("", base+`,"minimumDuration":"24h","minimumDuration":"1h"`), invalid("24h or more"), ""},
		{family, "a lease with the name of an existing one", "acme", post(leases("acme"), leaseBody(`"name":"attack-acme"`, base)), conflict("already exists"), ""},
		{family, "a lease by PUT", "acme", put(leases("acme")+"/attack-x", leaseBody(`"name":"attack-x"`, base)), notFound(), ""},
		{family, "a lease by apply, with its finalizer", "acme", call{method: "PATCH", path: leases("acme") + "/attack-x?fieldManager=attack&dryRun=All", contentType: applyPatch, body: leaseBody(`"name":"attack-x","finalizers":["macrack.io/floor"]`, base)}.do, dropped(field(nil, "metadata", "finalizers")), ""},
		{family, "a third instance", "acme", post(instances("acme"), instanceBody(`"name":"attack-3"`, `"leaseName":"attack-acme"`)), forbidden("rule 1"), "InstanceRejected/NoFreeSlot"},
		{family, "a third instance, directly at the second server", "acme", call{method: "POST", path: instances("acme"), body: instanceBody(`"name":"attack-4"`, `"leaseName":"attack-acme"`), replica: 2}.do, forbidden("rule 1"), "InstanceRejected/NoFreeSlot"},
		{family, "an instance of the name of one that there is", "acme", post(instances("acme"), instanceBody(`"name":"attack-1"`, `"leaseName":"attack-acme"`)), conflict("already exists"), ""},
		{family, "an instance that asks for two virtual machines", "globex", requests(`"macrack.io/macos-vm":"2"`), invalid("rule 1"), ""},
		{family, "an instance that asks for none", "globex", requests(`"macrack.io/macos-vm":"0"`), invalid("rule 1"), ""},
		{family, "an instance that asks for half a one", "globex", requests(`"macrack.io/macos-vm":"500m"`), invalid("rule 1"), ""},
		{family, "an instance that asks for less than none", "globex", requests(`"macrack.io/macos-vm":"-1"`), invalid("rule 1"), ""},
		{family, "an instance that asks for 2^63", "globex", requests(`"macrack.io/macos-vm":"9223372036854775808"`), invalid("rule 1"), ""},
		{family, "an instance that asks for 1e-30 more than one", "globex", requests(`"macrack.io/macos-vm":"1000000001n"`), invalid("rule 1"), ""},
		{family, "an instance that asks for a processor besides", "globex", requests(`"macrack.io/macos-vm":"1","cpu":"64"`), invalid("cpu"), ""},
		{family, "an instance that asks under a name in capitals", "globex", requests(`"macrack.io/MacOS-VM":"1"`), invalid("Unsupported value"), ""},
		{family, "an instance owned by another user's object", "globex", post(instances("globex"), instanceBody(`"name":"attack-x","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"00000000-0000-0000-0000-000000000001"}]`, `"leaseName":"attack-globex"`)), forbidden("owned by its lease alone"), "InstanceRejected/ForeignOwner"},
		{family, "an instance owned by another tenant's lease", "globex", post(instances("globex"), instanceBody(`"name":"attack-x","ownerReferences":[{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","name":"attack-acme","uid":"`+w.acmeUID+`"}]`, `"leaseName":"attack-globex"`)), forbidden("owned by its lease alone"), "InstanceRejected/ForeignOwner"},
		{family, "an instance with a MacRack finalizer", "globex", post(instances("globex"), instanceBody(`"name":"attack-x","finalizers":["macrack.io/floor"]`, `"leaseName":"attack-globex"`)), invalid("only the server adds finalizers"), ""},
		{family, "an instance on a Mac of its choice, strictly", "globex", post(instances("globex")+"?fieldValidation=Strict", instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex","nodeName":"`+w.acmeMac+`"`)), badRequest("unknown field"), ""},
		{family, "an instance with a status, as a dry run", "globex", post(instances("globex")+"?dryRun=All", strings.TrimSuffix(instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex"`), "}")+`,"status":{"phase":"Running","nodeName":"`+w.acmeMac+`","machineID":"AAAA","podName":"x"}}`),
			dropped(all(field("Pending", "status", "phase"), not(w.acmeMac, "status", "nodeName"), field(nil, "status", "machineID"), field(nil, "status", "podName"))), ""},
		{family, "an instance of an unknown image", "globex", mine(`"imageName":"gitlab-runner"`), forbidden("there is no image"), "InstanceRejected/NoSuchImage"},
		{family, "an instance too large for its Mac", "globex", mine(`"className":"large"`), forbidden("no room"), "InstanceRejected/DoesNotFit"},
		{family, "an instance with a private key as a public one", "globex", mine(`"sshAuthorizedKeys":["-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA"]`), want{codes: []int{422}, says: "(not shown)", lacks: []string{"BEGIN OPENSSH"}}, ""},
		{family, "an instance with a startup script of a megabyte", "globex", mine(`"startupScript":"` + strings.Repeat("x", 1<<20) + `"`), invalid("Too long"), ""},
		{family, "a Mac", "acme", post(rackPath+"/macnodes", macNodeBody("attack-x", "SIM8888888")), noRight(), ""},
		{family, "a Mac with another Mac's serial number", "hardware", post(rackPath+"/macnodes", macNodeBody("attack-x", w.acmeSerial)), invalid("a chassis is in the fleet once"), ""},
		{family, "a Mac with a status that names its tenant", "hardware", stored(rackPath+"/macnodes", strings.TrimSuffix(macNodeBody("attack-x", "SIM8888888"), "}")+`,"status":{"phase":"Available","leaseRef":{"namespace":"acme","name":"attack-acme","uid":"`+w.acmeUID+`"},"hardware":{"serialNumber":"SIM8888888"}}}`),
			dropped(all(field("Pending", "status", "phase"), field(nil, "status", "leaseRef"), field(nil, "status", "hardware"))), ""},
		{family, "a Mac of more virtual machines, strictly", "hardware", post(rackPath+"/macnodes?fieldValidation=Strict", strings.Replace(macNodeBody("attack-x", "SIM8888888"), `"spec":{`, `"spec":{"maxVMs":3,`, 1)), badRequest("unknown field"), ""},
	}
}

func macNodeBody(name, serial string) string {
	return fmt.Sprintf(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNode","metadata":{"name":%q},"spec":{"serialNumber":%q,"className":"base"}}`, name, serial)
}

func (w *world) forgedUpdates() []attempt {
	const family = "update"
	spec := func(name string, value any) func(map[string]any) {
		return func(obj map[string]any) { obj["spec"].(map[string]any)[name] = value }
	}
	lease, one := w.acmeLease(), instances("acme")+"/attack-1"
	return []attempt{
		{family, "another class, by replace", "acme", change(lease, lease, spec("className", "pro")), invalid("immutable"), ""},
		{family, "another class, by a merge patch", "acme", patch(mergePatch, lease, `{"spec":{"className":"pro"}}`), invalid("immutable"), ""},
		{family, "another class, by a JSON patch", "acme", patch(jsonPatch, lease, `[{"op":"replace","path":"/spec/className","value":"pro"}]`), invalid("immutable"), ""},
		{family, "another class, by a strategic merge patch", "acme", patch(strategicPatch, lease, `{"spec":{"className":"pro"}}`), invalid("immutable"), ""},
		{family, "another class, by apply with force", "acme", patch(applyPatch, lease, leaseBody(`"name":"attack-acme"`, `"className":"pro"`)), invalid("immutable"), ""},
		{family, "no class", "acme", patch(mergePatch, lease, `{"spec":{"className":null}}`), dropped(field("base", "spec", "className")), ""},
		{family, "the serial number of another tenant's Mac", "acme", patch(mergePatch, lease, `{"spec":{"serialNumber":"`+w.globexSerial+`"}}`), invalid("immutable"), ""},
		{family, "a shorter minimumDuration, by replace", "acme", change(lease, lease, spec("minimumDuration", "24h")), invalid("can only be lengthened"), "none"},
		{family, "a shorter minimumDuration, by a merge patch", "acme", patch(mergePatch, lease, `{"spec":{"minimumDuration":"24h0m1s"}}`), invalid("can only be lengthened"), "none"},
		{family, "a shorter minimumDuration, by a strategic merge patch", "acme", patch(strategicPatch, lease, `{"spec":{"minimumDuration":"24h0m2s"}}`), invalid("can only be lengthened"), "none"},
		{family, "a shorter minimumDuration, by apply with force", "acme", patch(applyPatch, lease, leaseBody(`"name":"attack-acme"`, base+`,"minimumDuration":"24h0m3s"`)), invalid("can only be lengthened"), "none"},
		{family, "no minimumDuration, which is 24h", "acme", patch(mergePatch, lease, `{"spec":{"minimumDuration":null}}`), invalid("can only be lengthened"), "none"},
		{family, "a shorter minimumDuration", "root", patch(mergePatch, lease, `{"spec":{"minimumDuration":"24h"}}`), invalid("can only be lengthened"), "none"},
		{family, "a shorter minimumDuration, directly", "admin", call{method: "PATCH", path: lease, body: `{"spec":{"minimumDuration":"24h"}}`, contentType: mergePatch, replica: 2}.do, invalid("can only be lengthened"), "none"},
		{family, "a shorter minimumDuration", "controllers", patch(mergePatch, lease, `{"spec":{"minimumDuration":"24h"}}`), noRight(), "none"},
		// Rejections that fold into the record of this one would go unnoticed after it.
		{family, "a shorter minimumDuration, by a JSON patch", "acme", patch(jsonPatch, lease, `[{"op":"replace","path":"/spec/minimumDuration","value":"1h"}]`), invalid("24h or more"), "FloorTamperRejected/FloorMoved"},
		{family, "a lease as it was long ago", "acme", change(lease, lease, func(obj map[string]any) { obj["metadata"].(map[string]any)["resourceVersion"] = "1" }), conflict("has been modified"), ""},
		{family, "a lease with an invalid resourceVersion", "acme", change(lease, lease, func(obj map[string]any) { obj["metadata"].(map[string]any)["resourceVersion"] = "١" }), badRequest("metadata.resourceVersion"), ""},
		{family, "a lease under another UID", "acme", patch(mergePatch, lease, `{"metadata":{"uid":"`+w.globexUID+`"}}`), invalid("metadata.uid"), ""},
		{family, "a lease under another name", "acme", patch(mergePatch, lease, `{"metadata":{"name":"other"}}`), badRequest("does not match the name"), ""},
		{family, "a lease moved to another namespace", "acme", patch(mergePatch, lease, `{"metadata":{"namespace":"globex"}}`), badRequest("does not match the namespace"), ""},
		{family, "a lease created at another time", "acme", patch(mergePatch, lease, `{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z"}}`), ignored(), ""},
		{family, "a lease deleted by writing it", "acme", patch(mergePatch, lease, `{"metadata":{"deletionTimestamp":"2001-01-01T00:00:00Z"}}`), invalid("metadata.deletionTimestamp"), ""},
		{family, "the status, in an update of the spec", "acme", patch(mergePatch, lease, `{"status":{"earliestReleaseAt":"2020-01-01T00:00:00Z","phase":"Pending"}}`), ignored(), ""},
		{family, "the status, in an update of the spec", "root", change(lease, lease, func(obj map[string]any) { delete(obj, "status") }), ignored(), ""},
		{family, "the scale of a lease", "acme", patch(mergePatch, lease+"/scale", `{"spec":{"replicas":3}}`), noRight(), ""},
		{family, "the scale of a lease", "admin", put(lease+"/scale", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"attack-acme","namespace":"acme"},"spec":{"replicas":3}}`), notFound(), ""},
		{family, "a serial number of a Mac", "hardware", patch(mergePatch, w.acmeNode(), `{"spec":{"serialNumber":"SIM8888888"}}`), invalid("immutable"), ""},
		{family, "the class of a leased Mac", "hardware", patch(mergePatch, w.acmeNode(), `{"spec":{"className":"pro"}}`), conflict("rule 2"), ""},
		{family, "the lease of a Mac, in an update of its spec", "hardware", patch(mergePatch, w.acmeNode(), `{"status":{"leaseRef":null}}`), ignored(), ""},
		{family, "the lease of an instance", "acme", patch(mergePatch, one, `{"spec":{"leaseName":"attack-globex"}}`), invalid("create another instance"), ""},
		{family, "the image of an instance", "acme", patch(jsonPatch, one, `[{"op":"replace","path":"/spec/imageName","value":"macos-15-xcode-16"}]`), invalid("create another instance"), ""},
		{family, "the request of an instance", "acme", patch(strategicPatch, one, `{"spec":{"resources":{"requests":{"macrack.io/macos-vm":"2"}}}}`), invalid("create another instance"), ""},
		{family, "the keys of an instance", "acme", patch(mergePatch, one, `{"spec":{"sshAuthorizedKeys":["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ x"]}}`), invalid("create another instance"), ""},
		{family, "the class of an instance", "root", patch(mergePatch, one, `{"spec":{"className":"large"}}`), invalid("create another instance"), ""},
		{family, "a stop with a negative grace period", "acme", post(one+"/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","gracePeriodSeconds":-1}`), invalid("gracePeriodSeconds"), ""},
		{family, "a stop of another name than the path's", "acme", post(one+"/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","metadata":{"name":"attack-2"}}`), badRequest("does not match"), ""},
	}
}

func (w *world) forgedStatuses() []attempt {
	const family = "status"
	lease, one := w.acmeLease()+"/status", instances("acme")+"/attack-1/status"
	mac := w.acmeNode() + "/status"
	status := func(name string, value any) func(map[string]any) {
		return func(obj map[string]any) { obj["status"].(map[string]any)[name] = value }
	}
	tampered := "FloorTamperRejected"
	binding := func(node string) string {
		return `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseBinding","nodeName":"` + node + `"}`
	}
	const release = `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseRelease","nodeTaints":["macrack.io/unleased:NoSchedule"]}`
	attempts := []attempt{
		{family, "the floor to the past, by a merge patch", "acme", patch(mergePatch, lease, `{"status":{"earliestReleaseAt":"2020-01-01T00:00:00Z"}}`), noRight(), ""},
		{family, "the floor to the past, by replace", "acme-admin", change(w.acmeLease(), lease, status("earliestReleaseAt", "2020-01-01T00:00:00Z")), noRight(), ""},
		{family, "the floor to the past, by apply", "acme-admin", patch(applyPatch, lease, leaseWith(`"name":"attack-acme"`, base, `"earliestReleaseAt":"2020-01-01T00:00:00Z"`)), noRight(), ""},
		{family, "binding", "acme-admin", post(w.acmeLease()+"/binding", binding(w.globexMac)), noRight(), ""},
		{family, "release", "acme-admin", post(w.acmeLease()+"/release", release), noRight(), ""},
		{family, "release", "hardware", post(w.acmeLease()+"/release", release), noRight(), ""},
		{family, "release", "agent", post(w.acmeLease()+"/release", release), noRight(), ""},
		{family, "binding to another Mac", "controllers", post(w.acmeLease()+"/binding", binding(w.globexMac)), conflict("bound to Mac"), ""},
		{family, "binding to no Mac", "controllers", post(w.acmeLease()+"/binding", binding("")), invalid("nodeName: Required"), ""},
		{family, "binding, from the body of a path", "controllers", post(w.acmeLease()+"/binding", binding("../macnodes/x")), invalid("nodeName: Invalid"), ""},
		{family, "a release before the floor", "controllers", post(w.acmeLease()+"/release", release), forbidden("rule 3"), tampered + "/EarlyRelease"},
		{family, "a release before the floor", "root", post(w.acmeLease()+"/release", release), forbidden("rule 3"), tampered + "/EarlyRelease"},
		{family, "a release with a forged taint", "controllers", post(w.acmeLease()+"/release", strings.Replace(release, "NoSchedule", "Never", 1)), invalid("nodeTaints"), ""},
		{family, "instances of a lease", "controllers", patch(mergePatch, lease, `{"status":{"instances":[]}}`), ignored(), ""},
		{family, "the Mac of a lease", "controllers", patch(mergePatch, lease, `{"status":{"nodeName":"`+w.globexMac+`","serialNumber":"`+w.globexSerial+`"}}`), ignored(), ""},
		{family, "that a lease was held and released", "root", patch(mergePatch, lease, `{"status":{"heldAt":"2020-01-01T00:00:00Z","releasedAt":"2020-01-01T00:00:00Z"}}`), ignored(), ""},
		{family, "the spec, in an update of the status", "controllers", patch(mergePatch, lease, `{"spec":{"className":"pro","minimumDuration":"1h"}}`), ignored(), ""},
		{family, "finalizers, in an update of the status", "root", patch(mergePatch, lease, `{"metadata":{"finalizers":null,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"00000000-0000-0000-0000-000000000001"}]}}`), ignored(), ""},
		{family, "the floor far ahead", "controllers", patch(mergePatch, lease, `{"status":{"earliestReleaseAt":"9999-12-31T23:59:59Z"}}`), ignored(), ""},
		{family, "whose a Mac is", "acme-admin", patch(mergePatch, mac, `{"status":{"leaseRef":null}}`), noRight(), ""},
		{family, "whose a Mac is", "hardware", patch(mergePatch, mac, `{"status":{"leaseRef":null}}`), noRight(), ""},
		{family, "whose a Mac is", "controllers", patch(mergePatch, mac, `{"status":{"leaseRef":null}}`), ignored(), ""},
		{family, "whose a Mac is, by a merge patch", "root", patch(mergePatch, mac, `{"status":{"leaseRef":null,"earliestReleaseAt":null,"phase":"Available"}}`), ignored(), ""},
		{family, "whose a Mac is, by a JSON patch", "root", patch(jsonPatch, mac, `[{"op":"remove","path":"/status/leaseRef"}]`), ignored(), ""},
		{family, "that a Mac is another tenant's", "root", patch(mergePatch, mac, `{"status":{"leaseRef":{"namespace":"globex","name":"attack-globex","uid":"`+w.globexUID+`"}}}`), ignored(), ""},
		{family, "that a Mac is being released", "root", patch(mergePatch, mac, `{"status":{"releasingSince":"2020-01-01T00:00:00Z","phase":"Releasing"}}`), ignored(), ""},
		{family, "that nothing runs on a Mac", "root", patch(mergePatch, mac, `{"status":{"runningVMs":0}}`), ignored(), ""},
		{family, "that three run on a Mac", "root", patch(mergePatch, mac, `{"status":{"runningVMs":3}}`), ignored(), ""},
		{family, "that a Mac is scrubbed", "controllers", patch(mergePatch, mac, `{"status":{"scrub":{"leaseUID":"`+w.acmeUID+`","finishedAt":"2026-01-01T00:00:00Z"}}}`), forbidden("only the condition Ready"), ""},
		{family, "that a Mac has other hardware", "controllers", patch(mergePatch, mac, `{"status":{"bootID":"forged"}}`), forbidden("only the condition Ready"), ""},
		{family, "that an instance stopped", "acme-admin", patch(mergePatch, one, `{"status":{"phase":"Stopped"}}`), noRight(), ""},
		{family, "that an instance whose virtual machine runs stopped", "controllers", patch(mergePatch, one, `{"status":{"phase":"Stopped"}}`), forbidden("only the agent"), ""},
		{family, "that an instance failed", "controllers", patch(mergePatch, one, `{"status":{"phase":"Failed"}}`), forbidden("when the agent"), ""},
		{family, "that an instance is Pending again", "controllers", patch(mergePatch, one, `{"status":{"phase":"Pending"}}`), invalid("does not go back"), ""},
		{family, "that an instance is Pending again", "root", patch(mergePatch, one, `{"status":{"phase":"Pending"}}`), invalid("does not go back"), ""},
		{family, "that an instance is on another Mac", "root", patch(mergePatch, one, `{"status":{"nodeName":"`+w.globexMac+`","serialNumber":"`+w.globexSerial+`"}}`), ignored(), ""},
		{family, "another machine ID", "controllers", patch(mergePatch, one, `{"status":{"machineID":"AAAA"}}`), invalid("never changes"), ""},
		{family, "another machine ID", "root", patch(mergePatch, one, `{"status":{"machineID":"AAAA"}}`), invalid("never changes"), ""},
		{family, "no machine ID", "root", patch(mergePatch, one, `{"status":{"machineID":null}}`), invalid("never changes"), ""},
		{family, "another placeholder pod", "controllers", patch(mergePatch, one, `{"status":{"podName":"other"}}`), invalid("one placeholder pod"), ""},
		{family, "an unknown phase", "root", patch(mergePatch, one, `{"status":{"phase":"Paused"}}`), invalid("Unsupported value"), ""},
	}
	for _, who := range []string{"controllers", "root", "admin"} {
		attempts = append(attempts,
			attempt{family, "the floor to the past, by a merge patch", who, patch(mergePatch, lease, `{"status":{"earliestReleaseAt":"2020-01-01T00:00:00Z"}}`), invalid("never moves backwards"), tampered + "/FloorMoved"},
			attempt{family, "no floor, by a JSON patch", who, patch(jsonPatch, lease, `[{"op":"remove","path":"/status/earliestReleaseAt"}]`), invalid("never moves backwards"), tampered + "/FloorMoved"},
			attempt{family, "bound long ago, by a strategic merge patch", who, patch(strategicPatch, lease, `{"status":{"boundAt":"2020-01-01T00:00:00Z"}}`), invalid("never changes"), tampered + "/FloorMoved"},
			attempt{family, "never bound, by replace", who, change(w.acmeLease(), lease, status("boundAt", nil)), invalid("never changes"), tampered + "/FloorMoved"},
			attempt{family, "bound long ago, by apply with force", who, patch(applyPatch, lease, leaseWith(`"name":"attack-acme"`, base, `"boundAt":"2020-01-01T00:00:00Z"`)), invalid("never changes"), tampered + "/FloorMoved"},
			attempt{family, "Releasing", who, patch(mergePatch, lease, `{"status":{"phase":"Releasing"}}`), forbidden("not from Bound to Releasing"), tampered + "/PhaseTampered"},
			attempt{family, "Released", who, patch(mergePatch, lease, `{"status":{"phase":"Released"}}`), forbidden("not from Bound to Released"), tampered + "/PhaseTampered"},
			attempt{family, "Pending again, without a floor", who, change(w.acmeLease(), lease, func(obj map[string]any) { obj["status"] = map[string]any{"phase": "Pending"} }), invalid("never"), tampered + "/FloorMoved"},
		)
	}
	return attempts
}

func (w *world) finalizers() []attempt {
	const family = "finalizers"
	const record = "FloorTamperRejected/FloorFinalizerRemoved"
	lease, one := w.acmeLease(), instances("acme")+"/attack-1"
	finalizers := func(value any) func(map[string]any) {
		return func(obj map[string]any) { obj["metadata"].(map[string]any)["finalizers"] = value }
	}
	removed := forbidden("macrack.io/floor")
	attempts := []attempt{
		{family, "the floor's replaced by one that looks like it", "acme", patch(mergePatch, lease, `{"metadata":{"finalizers":["macrack.io/fIoor"]}}`), invalid("only the server adds finalizers"), ""},
		{family, "the floor's with a blank", "acme", patch(mergePatch, lease, `{"metadata":{"finalizers":["macrack.io/floor "]}}`), invalid("metadata.finalizers"), ""},
		{family, "the floor's replaced by another's", "acme", patch(mergePatch, lease+"?dryRun=All", `{"metadata":{"finalizers":["example.com/floor"]}}`), says(200, "macrack.io/floor"), "none"},
		{family, "the floor's, by the subresource finalizers", "root", put(lease+"/finalizers", leaseBody(`"name":"attack-acme"`, base)), notFound(), ""},
		{family, "that of an instance whose virtual machine runs", "acme", patch(mergePatch, one, `{"metadata":{"finalizers":null}}`), forbidden("macrack.io/vm"), ""},
		{family, "that of an instance whose virtual machine runs", "root", patch(jsonPatch, one, `[{"op":"remove","path":"/metadata/finalizers"}]`), forbidden("macrack.io/vm"), ""},
		{family, "that of an instance whose virtual machine runs", "controllers", change(one, one, finalizers([]string{})), noRight(), ""},
		{family, "that of an instance whose virtual machine runs, by a patch", "controllers", patch(mergePatch, one, `{"metadata":{"finalizers":null}}`), forbidden("macrack.io/vm"), ""},
		{family, "the owner of an instance, removed", "acme", patch(mergePatch, one, `{"metadata":{"ownerReferences":null}}`), ignored(), ""},
		{family, "the owner of an instance, replaced by an object that is gone", "acme", patch(mergePatch, one, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"00000000-0000-0000-0000-000000000002"}]}}`), ignored(), ""},
		{family, "the owner of an instance, replaced by another tenant's lease", "root", patch(mergePatch, one, `{"metadata":{"ownerReferences":[{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","name":"attack-globex","uid":"`+w.globexUID+`"}]}}`), ignored(), ""},
		{family, "an orphaning finalizer on a lease", "acme", patch(mergePatch, lease, `{"metadata":{"finalizers":["macrack.io/floor","orphan"]}}`), ignored(), ""},
		{family, "two owners of a lease that both control it", "acme", patch(mergePatch, lease, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"a","uid":"1","controller":true},{"apiVersion":"v1","kind":"B","name":"b","uid":"2","controller":true}]}}`), invalid("ownerReferences"), ""},
	}
	attempts = append(attempts,
		attempt{family, "the floor's removed, by a merge patch", "controllers", patch(mergePatch, lease, `{"metadata":{"finalizers":null}}`), noRight(), "none"},
		attempt{family, "the floor's removed, by replace", "controllers", change(lease, lease, finalizers(nil)), noRight(), "none"},
	)
	people := []string{"acme", "root", "admin"}
	for _, who := range people { // before the rejections: a record of the same kind would fold into theirs
		attempts = append(attempts, attempt{family, "the floor's removed, by replace", who, change(lease, lease, finalizers(nil)), says(200, "macrack.io/floor"), "none"})
	}
	for _, who := range people {
		attempts = append(attempts,
			attempt{family, "the floor's removed, by a merge patch", who, patch(mergePatch, lease, `{"metadata":{"finalizers":null}}`), removed, record},
			attempt{family, "the floor's removed, by a JSON patch", who, patch(jsonPatch, lease, `[{"op":"remove","path":"/metadata/finalizers"}]`), removed, record},
			attempt{family, "the floor's removed, by a strategic merge patch", who, patch(strategicPatch, lease, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["macrack.io/floor"]}}`), removed, record},
		)
	}
	return attempts
}

func (w *world) deletions() []attempt {
	const family = "deletions"
	attempts := []attempt{
		{family, "another tenant's lease", "acme", remove(w.globexLease()), noRight(), ""},
		{family, "another tenant's leases, all", "acme", remove(leases("globex")), noRight(), ""},
		{family, "the leases of all namespaces", "acme", remove(rackPath + "/macnodeleases"), noRight(), ""},
		{family, "the leases of all namespaces", "root", remove(rackPath + "/macnodeleases"), noSuchVerb(), ""},
		{family, "a lease under the UID of another", "acme", removeWith(w.acmeLease(), `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"`+w.globexUID+`"}}`), conflict("UID"), ""},
		{family, "a lease as it was long ago", "acme", removeWith(w.acmeLease(), `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`), conflict("ResourceVersion in the precondition"), ""},
		{family, "a lease with contradicting options", "acme", removeWith(w.acmeLease(), `{"apiVersion":"v1","kind":"DeleteOptions","orphanDependents":true,"propagationPolicy":"Background"}`), invalid("propagationPolicy"), ""},
		{family, "a lease with an unknown propagation policy", "acme", remove(w.acmeLease() + "?propagationPolicy=Never"), invalid("propagationPolicy"), ""},
		{family, "a lease, as a part of it", "acme", remove(w.acmeLease() + "/status"), noRight(), ""},
		{family, "a binding", "root", remove(w.acmeLease() + "/binding"), noSuchVerb(), ""},
		{family, "a leased Mac", "hardware", remove(w.acmeNode()), conflict("rule 2"), ""},
		{family, "a leased Mac", "root", remove(w.globexNode() + "?gracePeriodSeconds=0&propagationPolicy=Orphan"), conflict("rule 2"), ""},
		{family, "leased Macs, by a collection", "root", remove(rackPath + "/macnodes?fieldSelector=metadata.name%3D" + w.acmeMac), conflict("rule 2"), ""},
		{family, "a leased Mac", "acme-admin", remove(w.acmeNode()), noRight(), ""},
		{family, "the Mac of an agent", "agent", remove(w.acmeNode()), noRight(), ""},
		{family, "an image that an instance uses", "hardware", remove(imagePath + "/macosimages/" + macOSImage), conflict("uses it"), ""},
		{family, "an image that an instance uses", "root", remove(imagePath + "/macosimages/" + macOSImage + "?gracePeriodSeconds=0&propagationPolicy=Foreground"), conflict("uses it"), ""},
		{family, "an image", "acme", remove(imagePath + "/macosimages/" + macOSImage), noRight(), ""},
		{family, "an instance of another tenant", "globex", remove(instances("acme") + "/attack-1"), noRight(), ""},
		{family, "instances of another tenant, all", "globex", remove(instances("acme")), noRight(), ""},
		{family, "an instance", "agent", remove(instances("acme") + "/attack-1"), noRight(), ""},
		{family, "the configuration", "hardware", remove(configPath + "/rackconfigs/default"), noRight(), ""},
		{family, "a report", "root", remove(rackPath + "/compliancereports/90d"), noSuchVerb(), ""},
		{family, "everything of a group", "root", remove(rackPath), noSuchVerb(), ""},
		{family, "a lease", "anonymous", remove(w.acmeLease()), noRight(), ""},
	}
	return attempts
}

// times are attempts with durations and times that are invalid or out of bounds.
func (w *world) times() []attempt {
	const family = "times"
	var attempts []attempt
	for _, d := range []struct {
		value, says string
		code        int
	}{
		{`"23h59m59s"`, "24h or more", 422},
		{`"23h59m59.999999999s"`, "24h or more", 422},
		{`"1439m"`, "24h or more", 422},
		{`"-24h"`, "24h or more", 422},
		{`"-2562047h47m16.854775808s"`, "24h or more", 422},
		{`"0"`, "24h or more", 422},
		{`"24h0m0.5s"`, "whole seconds", 422},
		{`"24h0m0.000000001s"`, "whole seconds", 422},
		{`"26281h"`, "at most", 422},
		{`"2562047h47m16.854775807s"`, "at most", 422},
		{`"0.9d"`, "24h or more", 422},
		{`"2562047h47m16.854775808s"`, "spec.minimumDuration", 422},
		{`"9223372036854775808ns"`, "spec.minimumDuration", 422},
		{`"99999999999999999999h"`, "spec.minimumDuration", 422},
		{`"24H"`, "spec.minimumDuration", 422},
		{`"24"`, "spec.minimumDuration", 422},
		{`"24h "`, "spec.minimumDuration", 422},
		{`" 24h"`, "spec.minimumDuration", 422},
		{`"٢٤h"`, "spec.minimumDuration", 422},
		{`"２４h"`, "spec.minimumDuration", 422},
		{`"2.4e1h"`, "spec.minimumDuration", 422},
		{`"0x18h"`, "spec.minimumDuration", 422},
		{`"Infh"`, "spec.minimumDuration", 422},
		{`"NaNh"`, "spec.minimumDuration", 422},
		{`"P1D"`, "spec.minimumDuration", 422},
		{`""`, "spec.minimumDuration", 422},
		{`86400000000000`, "spec.minimumDuration", 422},
		{`8.64e13`, "spec.minimumDuration", 422},
		{`["24h"]`, "spec.minimumDuration", 422},
		{`{"duration":"24h"}`, "spec.minimumDuration", 422},
		{`true`, "spec.minimumDuration", 422},
	} {
		attempts = append(attempts, attempt{family, "a lease for " + d.value, "acme",
			post(leases("acme"), leaseBody(`"name":"attack-x"`, base+`,"minimumDuration":`+d.value)), says(d.code, d.says), ""})
	}
	for _, d := range []string{`"23h"`, `"25h","minimumDuration":"26h"`, `"-1h"`, `"2562047h"`, `"24h0m0.5s"`} {
		attempts = append(attempts, attempt{family, "a lease that expires after " + d, "acme",
			post(leases("acme"), leaseBody(`"name":"attack-x"`, base+`,"expireAfter":`+d)), invalid("spec.expireAfter"), ""})
	}
	attempts = append(attempts, attempt{family, "a lease lengthened beyond all time", "acme",
		patch(mergePatch, w.acmeLease(), `{"spec":{"minimumDuration":"2562047h47m16s"}}`), invalid("at most"), ""})
	for _, t := range []struct {
		value  string
		isTime bool
	}{
		{`"2016-12-31T23:59:60Z"`, false}, // a leap second
		{`"2026-02-29T00:00:00Z"`, false},
		{`"2026-11-29T24:00:00Z"`, false},
		{`"2026-11-29 12:00:00Z"`, false},
		{`"2026-11-29T12:00:00"`, false},
		{`"2026-11-29t12:00:00z"`, false},
		{`"2026-11-29T12:00:00+25:00"`, false},
		{`"10000-01-01T00:00:00Z"`, false},
		{`"-001-01-01T00:00:00Z"`, false},
		{`"0000-01-01T00:00:00Z"`, true},
		{`"0001-01-01T00:00:00Z"`, true},
		{`"1969-12-31T23:59:59Z"`, true},
		{`"1970-01-01T00:00:00Z"`, true},
		{`"2020-01-01T00:00:00+23:59"`, true},
		{`"2020-01-01T00:00:00.999999999-12:00"`, true},
		{`1700000000`, false},
		{`""`, false},
		{`{}`, false},
	} {
		for _, field := range []string{"boundAt", "earliestReleaseAt"} {
			refused, record := invalid("patch: Invalid value"), ""
			if t.isTime {
				refused, record = invalid("rule 3"), "FloorTamperRejected/FloorMoved"
			}
			attempts = append(attempts, attempt{family, field + " at " + t.value, "controllers",
				patch(mergePatch, w.acmeLease()+"/status", `{"status":{"`+field+`":`+t.value+`}}`), refused, record})
		}
	}
	return attempts
}

// look-alikes and names that are paths.
func (w *world) names() []attempt {
	const family = "names"
	var attempts []attempt
	for _, name := range []string{
		"аttack-x", "attack-x\u200b", "attack\u2010x", "ａttack", "attack\u202ex", "attack-x\u0000", "attack-x\n", " attack-x", "Attack-X", "..", ".", "a/b", "%2e%2e", "attack_x", "-attack", "attack.x",
		"attack\u0131", strings.Repeat("a", 64), strings.Repeat("a", 300), "",
	} {
		attempts = append(attempts, attempt{family, fmt.Sprintf("a lease named %+.20q", name), "acme",
			post(leases("acme"), leaseBody(`"name":`+jsonText(name), base)), invalid("metadata.name"), ""})
	}
	for _, serial := range []string{"sim0000001", "SIM000000１", "SIM0000001\n", " SIM0000001", "SIМ0000001", "SIM0000001\u200b", "SIM-0000001", "../SIM0000001", "*", "%", strings.Repeat("S", 21)} {
		attempts = append(attempts, attempt{family, fmt.Sprintf("a lease of the Mac %+q", serial), "acme",
			post(leases("acme"), leaseBody(`"name":"attack-x"`, base+`,"serialNumber":`+jsonText(serial))), invalid("spec.serialNumber"), ""})
	}
	for _, class := range []string{"bаse", "base\u200b", "BASE", "../base", "base/", "base\u0000"} {
		attempts = append(attempts, attempt{family, fmt.Sprintf("a lease of class %+q", class), "acme",
			post(leases("acme"), leaseBody(`"name":"attack-x"`, `"className":`+jsonText(class))), invalid("spec.className"), ""})
	}
	for _, lease := range []string{"globex/attack-globex", "../globex/attack-globex", "attack-globex.globex", "attack-аcme", "attack-acme\u200b", "ATTACK-ACME", "*"} {
		attempts = append(attempts, attempt{family, fmt.Sprintf("an instance on lease %+q", lease), "acme",
			post(instances("acme"), instanceBody(`"name":"attack-x"`, `"leaseName":`+jsonText(lease))), invalid("spec.leaseName"), ""})
	}
	return append(attempts,
		attempt{family, "a generated name of a path", "acme", post(leases("acme"), leaseBody(`"generateName":"../globex/"`, base)), invalid("metadata.generateName"), ""},
		attempt{family, "a generated name in another script", "acme", post(leases("acme"), leaseBody(`"generateName":"аttack-"`, base)), invalid("metadata.generateName"), ""},
		attempt{family, "a namespace in another script", "acme", post(leases("%D0%B0cme"), leaseBody(`"name":"attack-x"`, base)), noRight(), ""},
		attempt{family, "a namespace in capitals", "acme", post(leases("ACME"), leaseBody(`"name":"attack-x"`, base)), noRight(), ""},
		attempt{family, "a namespace that is a path", "acme", call{method: "GET", path: rackPath + "/namespaces/acme%2F..%2Fglobex/macnodeleases", raw: true}.do, want{codes: []int{301, 400, 403, 404}, lacks: w.secrets()}, ""},
		attempt{family, "an object that is a path", "acme", call{method: "GET", path: leases("acme") + "/..%2F..%2Fglobex%2Fmacnodeleases%2Fattack-globex", raw: true}.do, want{codes: []int{301, 400, 403, 404}, lacks: w.secrets()}, ""},
		attempt{family, "a path up from a namespace", "acme", call{method: "GET", path: leases("acme") + "/../../globex/macnodeleases", raw: true}.do, want{codes: []int{301, 307, 400, 403, 404}, lacks: w.secrets()}, ""},
		attempt{family, "a path with two slashes", "acme", call{method: "GET", path: rackPath + "//namespaces/globex/macnodeleases", raw: true}.do, want{codes: []int{301, 307, 400, 403, 404}, lacks: w.secrets()}, ""},
		attempt{family, "a Mac's name in another script", "hardware", post(rackPath+"/macnodes", macNodeBody("mаc-1", "SIM8888888")), invalid("metadata.name"), ""},
		attempt{family, "a Mac's serial number in another script", "hardware", post(rackPath+"/macnodes", macNodeBody("attack-x", "SIМ0000001")), invalid("spec.serialNumber"), ""},
		attempt{family, "an invalid label", "acme", patch(mergePatch, w.acmeLease(), `{"metadata":{"labels":{"a b":"c"}}}`), invalid("metadata.labels"), ""},
	)
}

func (w *world) crossNamespace() []attempt {
	const family = "cross"
	return []attempt{
		{family, "an instance on another tenant's lease", "acme", post(instances("acme"), instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex"`)), forbidden("a lease of its own namespace"), ""},
		{family, "an instance on another tenant's lease, the namespace in the name", "root", post(instances("acme"), instanceBody(`"name":"attack-x","namespace":"globex"`, `"leaseName":"attack-globex"`)), badRequest("namespace"), ""},
		{family, "an instance in another tenant's namespace", "acme", post(instances("globex"), instanceBody(`"name":"attack-x"`, `"leaseName":"attack-globex"`)), noRight(), ""},
		{family, "a lease in another tenant's namespace", "acme", post(leases("globex"), leaseBody(`"name":"attack-x"`, base)), noRight(), ""},
		{family, "a lease in a namespace that does not exist", "root", post(leases("attack-nowhere"), leaseBody(`"name":"attack-x"`, base)), notFound(), ""},
		{family, "a lease without a namespace", "root", post(rackPath+"/macnodeleases", leaseBody(`"name":"attack-x"`, base)), noSuchVerb(), ""},
		{family, "to stop another tenant's instance", "globex", post(instances("acme")+"/attack-1/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop"}`), noRight(), ""},
		{family, "to change another tenant's lease", "globex", patch(mergePatch, w.acmeLease(), `{"spec":{"minimumDuration":"48h"}}`), noRight(), ""},
		{family, "to stop an absent instance of its own", "globex", post(instances("globex")+"/attack-1/stop", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop"}`), notFound(), ""},
		{family, "a MacNode in a namespace", "root", get(rackPath + "/namespaces/acme/macnodes"), notFound(), ""},
	}
}

func (w *world) dryRuns() []attempt {
	const family = "dry run"
	body := leaseBody(`"name":"attack-dry"`, base)
	const release = `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseRelease","nodeTaints":["macrack.io/unleased:NoSchedule"]}`
	return []attempt{
		{family, "a lease", "acme", post(leases("acme")+"?dryRun=All", body), says(201, "Pending"), "none"},
		{family, "a lease of another tenant's Mac", "acme", post(leases("acme")+"?dryRun=All", leaseBody(`"name":"attack-dry"`, base+`,"serialNumber":"`+w.globexSerial+`"`)), forbidden("it does not exist, or it belongs to another lease"), "CrossTenantRejected/MacIsLeased"},
		{family, "an instance", "globex", post(instances("globex")+"?dryRun=All", instanceBody(`"name":"attack-dry"`, `"leaseName":"attack-globex"`)), says(201, "Pending"), "none"},
		{family, "a third instance", "acme", post(instances("acme")+"?dryRun=All", instanceBody(`"name":"attack-dry"`, `"leaseName":"attack-acme"`)), forbidden("rule 1"), "none"},
		{family, "to delete a lease", "acme", remove(w.acmeLease() + "?dryRun=All"), ignored(), "none"},
		{family, "to delete all leases", "acme", remove(leases("acme") + "?dryRun=All"), ignored(), "none"},
		{family, "to delete an instance", "acme", remove(instances("acme") + "/attack-1?dryRun=All"), ignored(), "none"},
		{family, "to stop an instance", "acme", post(instances("acme")+"/attack-1/stop?dryRun=All", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop"}`), says(201, ""), "none"},
		{family, "to remove the floor's finalizer", "acme", patch(mergePatch, w.acmeLease()+"?dryRun=All", `{"metadata":{"finalizers":null}}`), forbidden("macrack.io/floor"), "none"},
		{family, "to shorten a lease", "acme", patch(mergePatch, w.acmeLease()+"?dryRun=All", `{"spec":{"minimumDuration":"24h"}}`), invalid("can only be lengthened"), "none"},
		{family, "to lengthen a lease", "acme", patch(mergePatch, w.acmeLease()+"?dryRun=All", `{"spec":{"minimumDuration":"720h"}}`), ignored(), "none"},
		{family, "to release a lease", "root", post(w.acmeLease()+"/release?dryRun=All", release), forbidden("rule 3"), "none"},
		{family, "to move a floor", "root", patch(mergePatch, w.acmeLease()+"/status?dryRun=All", `{"status":{"boundAt":null}}`), invalid("never changes"), "none"},
		{family, "to delete a leased Mac", "hardware", remove(w.acmeNode() + "?dryRun=All"), conflict("rule 2"), "none"},
		{family, "to add a Mac", "hardware", post(rackPath+"/macnodes?dryRun=All", macNodeBody("attack-dry", "SIM8888888")), says(201, "Pending"), "none"},
		{family, "to put a Mac in quarantine", "agent", patch(mergePatch, w.acmeNode()+"/status?dryRun=All", `{"status":{"bootID":"dry"}}`), ignored(), "none"},
		{family, "an unknown kind of dry run", "acme", post(leases("acme")+"?dryRun=Some", body), invalid("dryRun"), "none"},
		{family, "a report of a rejection", "agent", post(records("acme")+"?dryRun=All", w.recordBody("Agent", w.acmeMac)), says(201, ""), "none"},
	}
}

// jsonText returns a text as a JSON string.
func jsonText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	b.WriteByte('"')
	return b.String()
}
