package main

import (
	"context"
	"fmt"
	"strings"
)

const (
	goodContents  = `{"name":"macOS","version":"26.1","build":"25B78"},{"name":"Xcode","version":"26.1","build":"17B55"},{"name":"guest-agent","version":"0.1.0"}`
	goodReference = "registry.example.com/macos/26:xcode-26"
)

func imageBody(name, contents, reference string) string {
	return fmt.Sprintf(`{"apiVersion":"image.macrack.io/v1alpha1","kind":"MacOSImage","metadata":{"name":%q},"spec":{"contents":[%s],"source":{"reference":%s,"digest":"sha256:%s"},"diskSize":"60Gi"}}`,
		name, contents, jsonText(reference), strings.Repeat("ab", 32))
}

// images are attempts to put forbidden content into an image, or to claim it in the reference.
func (w *world) images() []attempt {
	const family = "images"
	const path = imagePath + "/macosimages"
	var attempts []attempt
	add := func(name, contents, reference, text string) {
		attempts = append(attempts, attempt{family, name, "hardware", post(path, imageBody("attack-x", contents, reference)), invalid(text), ""})
	}
	for _, c := range []string{"gitlab-runner", "GitLab Runner", "actions-runner", "buildkite-agent", "acme", "xcode", "XCODE", "Хcode", "Xcode ", "Xcode\u200b", "macos", "guest_agent", "", "macOS\u0000", strings.Repeat("x", 10000)} {
		add(fmt.Sprintf("content %+.20q", c), goodContents+`,{"name":`+jsonText(c)+`,"version":"1.0"}`, goodReference, "may not be in an image")
	}
	add("Xcode twice", goodContents+`,{"name":"Xcode","version":"16.4"}`, goodReference, "a second Xcode")
	add("macOS twice", goodContents+`,{"name":"macOS","version":"15.6"}`, goodReference, "a second macOS")
	add("the guest agent twice", goodContents+`,{"name":"guest-agent","version":"0.1.0"}`, goodReference, "a second guest-agent")
	add("no macOS", `{"name":"guest-agent","version":"0.1.0"}`, "registry.example.com/macos/26", "exactly once")
	add("nothing", ``, "registry.example.com/macos/26", "exactly once")
	for _, v := range []string{"26.1 gitlab-runner 17", "26.1-acme", "acme", "26.1+runner", "26．1", "２６.1", "26.1\n", "26.1-beta acme", "99999.1", "26.1.1.1.1"} {
		add(fmt.Sprintf("version %+q", v), strings.Replace(goodContents, `"26.1"`, jsonText(v), 1), "registry.example.com/macos/26", "is not a version")
	}
	for _, b := range []string{"gitlab-runner", "25B78 acme", "25В78", "runner", "25B78\u200b"} {
		add(fmt.Sprintf("build %+q", b), strings.Replace(goodContents, `"25B78"`, jsonText(b), 1), "registry.example.com/macos/26", "is not a build number")
	}
	for _, tag := range []string{"acme", "xcode-26-acme", "macos-26.1-gitlab-runner", "globex_26", "26-a-c-m-e", "r2-acme", "20260801acme", "xcode16", "macos-15", "26.1acme", "runner", "agent7"} {
		add("tag "+tag, goodContents, "registry.example.com/macos/26:"+tag, "in the tag")
	}
	for _, reference := range []string{
		"registry.example.com/macos/26:аcme", "registry.example.com/macos/26:", "registry.example.com/macos/26@sha256:" + strings.Repeat("ab", 32), "macos/26:xcode-26", "file:///etc/passwd", "../../etc/passwd",
		"https://registry.example.com/macos", "registry.example.com/macos/26 acme", "", "registry.example.com/" + strings.Repeat("a", 600),
	} {
		add(fmt.Sprintf("reference %+.60q", reference), goodContents, reference, "spec.source.reference")
	}
	for _, change := range [][2]string{
		{`"sha256:` + strings.Repeat("ab", 32), `"sha256:` + strings.Repeat("AB", 32)},
		{`"sha256:` + strings.Repeat("ab", 32), `"md5:` + strings.Repeat("ab", 16)},
		{`"60Gi"`, `"-60Gi"`},
		{`"60Gi"`, `"0"`},
		{`"60Gi"`, `"9999999Ti"`},
		{`"60Gi"`, `"0.5"`},
	} {
		body := strings.Replace(imageBody("attack-x", goodContents, goodReference), change[0], change[1], 1)
		attempts = append(attempts, attempt{family, "with " + change[1][:min(20, len(change[1]))], "hardware", post(path, body), want{codes: []int{422}}, ""})
	}
	ready := path + "/" + macOSImage
	return append(attempts,
		attempt{family, "an image", "acme", post(path, imageBody("attack-x", goodContents, goodReference)), noRight(), ""},
		attempt{family, "a Ready image with other contents", "hardware", patch(mergePatch, ready, `{"spec":{"contents":[{"name":"macOS","version":"27.0"},{"name":"guest-agent","version":"0.1.0"}]}}`), invalid("the image is Ready"), ""},
		attempt{family, "a Ready image with another digest", "root", patch(jsonPatch, ready, `[{"op":"replace","path":"/spec/source/digest","value":"sha256:`+strings.Repeat("cd", 32)+`"}]`), invalid("the image is Ready"), ""},
		attempt{family, "a Ready image set back from Ready", "root", patch(mergePatch, ready+"/status", `{"status":{"phase":"Pending"}}`), invalid("Ready is final"), ""},
		attempt{family, "a Ready image with another digest in its status", "controllers", patch(mergePatch, ready+"/status", `{"status":{"digest":"sha256:`+strings.Repeat("cd", 32)+`"}}`), invalid("must be spec.source.digest"), ""},
		attempt{family, "the status of an image", "hardware", patch(mergePatch, ready+"/status", `{"status":{"phase":"Failed"}}`), noRight(), ""},
	)
}

// configuration are attempts to make the configuration break a rule.
func (w *world) configuration() []attempt {
	const family = "configuration"
	const path = configPath + "/rackconfigs"
	spec := func(s string) step { return patch(mergePatch, path+"/default", `{"spec":{`+s+`}}`) }
	return []attempt{
		{family, "records kept for an hour", "hardware", spec(`"audit":{"retention":"1h"}`), invalid("spec.audit.retention"), ""},
		{family, "records kept for a negative time", "hardware", spec(`"audit":{"retention":"-2562047h"}`), invalid("spec.audit.retention"), ""},
		{family, "records kept a second short of 90 days", "root", spec(`"audit":{"retention":"2159h59m59s"}`), invalid("spec.audit.retention"), ""},
		{family, "Macs offline after one heartbeat", "hardware", spec(`"agent":{"heartbeatInterval":"60s","offlineAfter":"60s"}`), invalid("heartbeats"), ""},
		{family, "Macs offline at once", "hardware", spec(`"agent":{"offlineAfter":"0s"}`), invalid("spec.agent.offlineAfter"), ""},
		{family, "a field that lowers a rule", "hardware", patch(mergePatch, path+"/default?fieldValidation=Strict", `{"spec":{"minimumLeaseDuration":"1h","maxVMsPerMac":3}}`), invalid("unknown field"), ""},
		{family, "a second configuration", "hardware", post(path, `{"apiVersion":"config.macrack.io/v1alpha1","kind":"RackConfig","metadata":{"name":"attack-x"},"spec":{"imageCache":{"minimumFree":"20Gi"}}}`), invalid("Unsupported value"), ""},
		{family, "an unknown reboot policy", "hardware", spec(`"quarantine":{"reboot":"Always"}`), invalid("Unsupported value"), ""},
		{family, "no room kept free", "hardware", spec(`"imageCache":{"minimumFree":"0"}`), invalid("spec.imageCache.minimumFree"), ""},
		{family, "the configuration", "acme-admin", spec(`"defaultClassName":"studio"`), noRight(), ""},
		{family, "a kind in the reserved group", "root", post("/apis/workload.macrack.io/v1alpha1/namespaces/acme/runners", `{}`), notFound(), ""},
		{family, "an instance class of nothing", "hardware", post(instancePath+"/instanceclasses", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"InstanceClass","metadata":{"name":"attack-x"},"spec":{"resources":{"cpu":"0","memory":"0"}}}`), invalid("spec.resources.cpu"), ""},
		{family, "an instance class of less than nothing", "hardware", post(instancePath+"/instanceclasses", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"InstanceClass","metadata":{"name":"attack-x"},"spec":{"resources":{"cpu":"-4","memory":"-8Gi","storage":"-64Gi"}}}`), invalid("spec.resources.cpu"), ""},
		{family, "a Mac class that keeps more than it has", "hardware", patch(mergePatch, rackPath+"/macnodeclasses/studio", `{"spec":{"hostReserved":{"cpu":"99","memory":"999Gi"}}}`), invalid("spec.hostReserved.cpu"), ""},
		{family, "a Mac class that keeps less than nothing", "hardware", patch(mergePatch, rackPath+"/macnodeclasses/studio", `{"spec":{"hostReserved":{"cpu":"-2","memory":"-8Gi"}}}`), invalid("spec.hostReserved.cpu"), ""},
	}
}

// floods are many requests, or large ones.
func (w *world) floods() []attempt {
	const family = "floods"
	// A flood must leave few records, however large it is.
	few := func(flood step) step {
		return func(ctx context.Context, w *world, who string) answer {
			before, err := w.records(ctx)
			if err != nil {
				return answer{code: -1, err: err}
			}
			a := flood(ctx, w, who)
			after, err := w.records(ctx)
			if err != nil {
				return answer{code: -1, err: err}
			}
			if more := len(after) - len(before); more > 10 {
				return answer{code: -1, body: fmt.Sprintf("%d records were made", more)}
			}
			return a
		}
	}
	third := func(i int) step {
		return call{method: "POST", path: instances("acme"), body: instanceBody(`"name":"attack-flood"`, `"leaseName":"attack-acme"`), replica: 1 + i%2}.do
	}
	floor := func(int) step { return patch(mergePatch, w.acmeLease(), `{"metadata":{"finalizers":null}}`) }
	nested := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	bomb := "apiVersion: rack.macrack.io/v1alpha1\nkind: MacNodeLease\nmetadata:\n  name: attack-x\n  annotations:\n    a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 10; i++ {
		bomb += fmt.Sprintf("    a%d: &a%d [*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d,*a%d]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	return []attempt{
		{family, "the same third instance, 300 times, at both servers", "acme", few(times(300, third)), says(403, "codes map[403:300]"), "InstanceRejected/NoFreeSlot"},
		{family, "the floor's finalizer, 100 times", "acme", few(times(100, floor)), want{codes: []int{403}, says: "codes map[403:", lacks: []string{"500:"}}, "FloorTamperRejected/FloorFinalizerRemoved"},
		{family, "another tenant's Mac, 100 times", "acme", few(times(100, func(int) step {
			return post(leases("acme"), leaseBody(`"name":"attack-x"`, base+`,"serialNumber":"`+w.globexSerial+`"`))
		})), says(403, "codes map[403:100]"), "CrossTenantRejected/MacIsLeased"},
		{family, "an object of eight megabytes", "acme", post(leases("acme"), leaseBody(`"name":"attack-x","annotations":{"a":"`+strings.Repeat("x", 8<<20)+`"}`, base)), anyOf([]int{0, 413}, "connection reset by peer", "broken pipe", "Request entity too large"), ""},
		{family, "annotations of a megabyte", "acme", post(leases("acme"), leaseBody(`"name":"attack-x","annotations":{"a":"`+strings.Repeat("x", 1<<20)+`"}`, base)), invalid("metadata.annotations: Too long"), ""},
		{family, "an object nested 20000 times", "acme", post(leases("acme"), leaseBody(`"name":"attack-x"`, base+`,"x":`+nested)), badRequest("exceeded max depth"), ""},
		{family, "aliases of aliases, in YAML", "acme", call{method: "POST", path: leases("acme"), body: bomb, contentType: "application/yaml"}.do, badRequest("excessive aliasing"), ""},
		{family, "a JSON patch of 20000 operations", "acme", patch(jsonPatch, w.acmeLease(), "["+strings.Repeat(`{"op":"test","path":"/kind","value":"MacNodeLease"},`, 20000)+`{"op":"test","path":"/kind","value":"MacNodeLease"}]`), says(413, "maximum operations in a JSON patch"), ""},
		{family, "a JSON patch that copies and copies", "acme", patch(jsonPatch, w.acmeLease(), `[{"op":"add","path":"/metadata/annotations","value":{"a":"`+strings.Repeat("x", 1000)+`"}}`+strings.Repeat(`,{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/b"}`, 100)+`]`), want{codes: []int{400, 413, 422}}, ""},
		{family, "more images to prefetch than there can be", "acme", post(leases("acme"), leaseBody(`"name":"attack-x"`, base+`,"prefetchImages":["`+strings.Repeat(`a","`, 5000)+`b"]`)), invalid("spec.prefetchImages"), ""},
		{family, "an unknown media type", "acme", call{method: "POST", path: leases("acme"), body: "<lease/>", contentType: "application/xml"}.do, says(415, "unknown format"), ""},
		{family, "nothing", "acme", call{method: "POST", path: leases("acme"), body: "null"}.do, invalid("metadata.name: Required value"), ""},
		{family, "protocol buffers that are none", "acme", call{method: "POST", path: leases("acme"), body: "k8s\x00\xff\xff\xff\xff", contentType: "application/vnd.kubernetes.protobuf"}.do, badRequest("unrecognized"), ""},
		{family, "an unknown method", "acme", call{method: "BREW", path: leases("acme")}.do, noRight(), ""},
		{family, "a page of less than none", "acme", get(leases("acme") + "?limit=-1"), want{codes: []int{200, 400, 422}, lacks: w.secrets()}, ""},
	}
}
