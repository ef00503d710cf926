package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// demoLabel marks the leases that the demo created.
const demoLabel = "demo.macrack.io/story"

const (
	leases    = "leases.rack.macrack.io"
	patience  = "--timeout=180s"
	aDay      = 24 * time.Hour
	twoVMs    = "rule 1 (two VMs per Mac)"
	oneTenant = "rule 2 (one tenant per Mac)"
	oneDay    = "rule 3 (at least 24 hours)"
)

// story runs the steps of the demo. It stops early if a step fails that later steps depend on.
func story(ctx context.Context, t *terminal) {
	lease := leaseMac(ctx, t)
	if lease == "" {
		return
	}
	first, second := lease+"-1", lease+"-2"
	if !twoInstances(ctx, t, lease, first, second) {
		return
	}
	aThird(ctx, t, lease)
	another(ctx, t, lease)
	if !deleteAtOnce(ctx, t, lease) {
		return
	}
	onHeld(ctx, t, lease, first, second)
	backdating(ctx, t, lease)
	report(ctx, t)
}

func leaseMac(ctx context.Context, t *terminal) string {
	t.say("acme leases a Mac.")
	a := t.kubectlInput(ctx, `apiVersion: rack.macrack.io/v1alpha1
kind: MacNodeLease
metadata:
  generateName: demo-
  labels: {`+demoLabel+`: "true"}
spec:
  className: base
`, "acme", "create", "-f", "-", "-o", "name")
	_, lease, _ := strings.Cut(strings.TrimSpace(a.stdout), "/")
	if !t.check("the lease is accepted", !a.failed && lease != "") {
		return ""
	}
	a = t.kubectl(ctx, "acme", "wait", "--for=condition=Bound", leases+"/"+lease, patience)
	if !t.check("it is Bound", !a.failed) {
		return ""
	}
	a = t.kubectl(ctx, "acme", "get", leases, lease, "-o", "wide")
	row := a.row(lease)
	t.check("it has a whole Mac, both slots free, for 24 hours from BOUND-AT to RELEASE-AT",
		row["PHASE"] == "Bound" && row["VMS"] == "0/2" && row["SERIAL"] != "" && between(row["BOUND-AT"], row["RELEASE-AT"]) == aDay)

	node := row["NODE"]
	t.say("The Mac's Node lets in acme only. (An administrator sees Nodes; tenants do not.)")
	a = t.kubectl(ctx, "admin", "wait", `--for=jsonpath={.spec.taints[?(@.key=="macrack.io/tenant")].value}=acme`, "node/"+node, patience)
	t.check("the Node is acme's", !a.failed)
	a = t.kubectl(ctx, "admin", "get", "node", node, "-o", `jsonpath={range .spec.taints[*]}{.key}={.value}:{.effect}{"\n"}{end}`)
	t.check("its taint is macrack.io/tenant=acme:NoSchedule, and macrack.io/unleased is gone",
		strings.Contains(a.stdout, "macrack.io/tenant=acme:NoSchedule") && !strings.Contains(a.stdout, "macrack.io/unleased"))
	return lease
}

func instance(lease, name string) string {
	return fmt.Sprintf(`apiVersion: instance.macrack.io/v1alpha1
kind: MacOSInstance
metadata:
  name: %s
spec:
  leaseName: %s
  className: small
  imageName: macos-15-xcode-16
`, name, lease)
}

func twoInstances(ctx context.Context, t *terminal, lease, first, second string) bool {
	t.say("Two macOS virtual machines on it.")
	a := t.kubectlInput(ctx, instance(lease, first)+"---\n"+instance(lease, second), "acme", "create", "-f", "-")
	if !t.check("both are accepted", !a.failed) {
		return false
	}
	a = t.kubectl(ctx, "acme", "wait", "--for=jsonpath={.status.phase}=Running", "macosinstances/"+first, "macosinstances/"+second, patience)
	if !t.check("both are Running", !a.failed) {
		return false
	}
	a = t.kubectl(ctx, "acme", "wait", "--for=jsonpath={.status.ipAddress.value}", "macosinstances/"+first, "macosinstances/"+second, patience)
	t.check("both have an address", !a.failed)
	a = t.kubectl(ctx, "acme", "get", "macosinstances", first, second, "-o", "wide")
	one, two := a.row(first), a.row(second)
	different := func(column string) bool {
		return one[column] != "" && one[column] != "<none>" && two[column] != "<none>" && one[column] != two[column]
	}
	t.check("each has a MAC address and a machine ID of its own, on the same Mac",
		different("MAC") && different("MACHINE-ID") && one["SERIAL"] != "" && one["SERIAL"] == two["SERIAL"])
	return true
}

func aThird(ctx context.Context, t *terminal, lease string) {
	t.say("A third exceeds the limit, for every user.")
	a := t.kubectlInput(ctx, instance(lease, lease+"-3"), "acme", "create", "-f", "-")
	t.check("it is refused, by the rule's name", a.failed && strings.Contains(a.stderr, twoVMs))
	a = t.kubectlInput(ctx, instance(lease, lease+"-3"), "admin", "--namespace", "acme", "create", "-f", "-")
	t.check("an administrator is refused too", a.failed && strings.Contains(a.stderr, twoVMs))
}

func another(ctx context.Context, t *terminal, lease string) {
	t.say("globex, another tenant, can neither see nor use it.")
	a := t.kubectl(ctx, "globex", "get", leases, lease, "--namespace", "acme")
	t.check("acme's lease is not shown to globex", a.failed && strings.Contains(a.stderr, "forbidden"))
	a = t.kubectl(ctx, "globex", "get", leases+",macosinstances,auditrecords")
	t.check("nothing of acme's is in globex's namespace", !a.failed && !strings.Contains(a.stdout, lease))
	a = t.kubectl(ctx, "globex", "get", "macnodes")
	t.check("nor are Macs shown to tenants", a.failed && strings.Contains(a.stderr, "forbidden"))
	a = t.kubectlInput(ctx, instance(lease, lease+"-x"), "globex", "create", "-f", "-")
	t.check("an instance on acme's lease is refused", a.failed && strings.Contains(a.stderr, oneTenant))
}

func deleteAtOnce(ctx context.Context, t *terminal, lease string) bool {
	t.say("acme deletes the lease at once.")
	a := t.kubectl(ctx, "acme", "delete", leases, lease, "--wait=false")
	t.check("a warning explains the effect", !a.failed && strings.Contains(a.stderr, "Warning: "+oneDay) && strings.Contains(a.stderr, "Held"))
	a = t.kubectl(ctx, "acme", "get", leases, lease)
	row := a.row(lease)
	held := t.check("the lease is Held, and RELEASE-AT is 24 hours after BOUND-AT, as before",
		row["PHASE"] == "Held" && between(row["BOUND-AT"], row["RELEASE-AT"]) == aDay && until(row["RELEASE-AT"]) > aDay-time.Hour)
	a = t.kubectl(ctx, "acme", "get", "auditrecords", "--field-selector", "type=LeaseHeld",
		"-o", `jsonpath={range .items[?(@.lease.name=="`+lease+`")]}{.time} {.type} by {.actor.username}, remaining {.details.remaining}{"\n"}{end}`)
	t.check("the ledger has the user and the remainder of the floor",
		strings.Contains(a.stdout, "LeaseHeld by acme, remaining 23h5"))
	return held
}

func onHeld(ctx context.Context, t *terminal, lease, first, second string) {
	t.say("The instances are stopped. The Mac belongs to acme until RELEASE-AT and remains usable.")
	a := t.kubectl(ctx, "acme", "wait", "--for=jsonpath={.status.phase}=Stopped", "macosinstances/"+first, "macosinstances/"+second, patience)
	t.check("both instances are Stopped", !a.failed)
	a = t.kubectlInput(ctx, instance(lease, lease+"-4"), "acme", "create", "-f", "-")
	t.check("a new instance on the Held lease is accepted", !a.failed)
	a = t.kubectl(ctx, "acme", "wait", "--for=jsonpath={.status.phase}=Running", "macosinstances/"+lease+"-4", patience)
	t.check("it is Running", !a.failed)
	a = t.kubectl(ctx, "acme", "get", leases+"/"+lease, "-o", "wide")
	row := a.row(lease)
	t.check("on the same Mac, in one of the two slots", row["PHASE"] == "Held" && row["VMS"] == "1/2")
}

func backdating(ctx context.Context, t *terminal, lease string) {
	t.say("No user can shorten the 24 hours, not even a cluster administrator.")
	const early = `{"status":{"earliestReleaseAt":"2020-01-02T00:00:00Z","boundAt":"2020-01-01T00:00:00Z"}}`
	a := t.kubectl(ctx, "acme", "patch", leases, lease, "--subresource=status", "--type=merge", "-p", early)
	t.check("a tenant may not write status", a.failed && strings.Contains(a.stderr, "forbidden"))
	a = t.kubectl(ctx, "admin", "--namespace", "acme", "patch", leases, lease, "--subresource=status", "--type=merge", "-p", early)
	t.check("backdating is refused, by the rule's name", a.failed && strings.Contains(a.stderr, oneDay))
	a = t.kubectl(ctx, "admin", "--namespace", "acme", "patch", leases, lease, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	t.check("so is removing the finalizer that keeps the Mac", a.failed && strings.Contains(a.stderr, oneDay))
	t.kubectl(ctx, "admin", "--namespace", "acme", "delete", leases, lease, "--force", "--grace-period=0", "--wait=false")
	phase := t.value(ctx, "admin", "{.status.phase}", "--namespace", "acme", leases, lease)
	t.check("deleting by force changes nothing", phase == "Held")
	a = t.kubectl(ctx, "admin", "--namespace", "acme", "get", "auditrecords", "--field-selector", "type=FloorTamperRejected", "-o", "wide")
	t.check("each attempt is in the ledger", strings.Count(a.stdout, lease) >= 2)
}

func report(ctx context.Context, t *terminal) {
	t.say("The verdict, as the auditor sees it.")
	a := t.kubectl(ctx, "admin", "get", "compliancereports", "24h")
	row := a.row("24h")
	t.check("never three virtual machines on a Mac, never two tenants, never a Mac released early: Compliant",
		row["VERDICT"] == "Compliant" && row["MAX-VMS"] == "2" && row["OVERLAPS"] == "0" && row["FLOOR-BREACHES"] == "0" && !slices.Contains([]string{"", "0"}, row["REJECTED"]))
	a = t.kubectl(ctx, "admin", "get", "macnodes")
	t.check("the Mac belongs to acme until RELEASE-AT", !a.failed && strings.Contains(a.stdout, "acme"))
}

// between returns the duration between two times of a table.
func between(from, to string) time.Duration {
	a, err := time.Parse(time.RFC3339, from)
	if err != nil {
		return 0
	}
	b, err := time.Parse(time.RFC3339, to)
	if err != nil {
		return 0
	}
	return b.Sub(a)
}

func until(at string) time.Duration {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return 0
	}
	return time.Until(t)
}
