package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// floods are many requests, or large ones.
func (w *world) floods() []attempt {
	const family = "floods"
	// A flood must leave few records of its kind, however large it is.
	few := func(record string, flood step) step {
		return func(ctx context.Context, w *world, who string) answer {
			by := attempt{who: who}
			before, err := w.recordsOf(ctx, by, time.Time{}, record)
			if err != nil {
				return answer{code: -1, err: err}
			}
			a := flood(ctx, w, who)
			after, err := w.recordsOf(ctx, by, time.Time{}, record)
			if err != nil {
				return answer{code: -1, err: err}
			}
			if more := after - before; more > 10 {
				return answer{code: -1, body: fmt.Sprintf("%d records %s were made", more, record)}
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
		{family, "the same third instance, 300 times, at both servers", "acme", few("InstanceRejected/NoFreeSlot", times(300, third)), says(403, "codes map[403:300]"), "InstanceRejected/NoFreeSlot"},
		{family, "the floor's finalizer, 100 times", "acme", few("FloorTamperRejected/FloorFinalizerRemoved", times(100, floor)), want{codes: []int{403}, says: "codes map[403:", lacks: []string{"500:"}}, "FloorTamperRejected/FloorFinalizerRemoved"},
		{family, "another tenant's Mac, 100 times", "acme", few("CrossTenantRejected/MacIsLeased", times(100, func(int) step {
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
		{family, "invalid protocol buffers", "acme", call{method: "POST", path: leases("acme"), body: "k8s\x00\xff\xff\xff\xff", contentType: "application/vnd.kubernetes.protobuf"}.do, badRequest("unrecognized"), ""},
		{family, "an unknown method", "acme", call{method: "BREW", path: leases("acme")}.do, noRight(), ""},
		{family, "a negative page size", "acme", get(leases("acme") + "?limit=-1"), want{codes: []int{200, 400, 422}, lacks: w.secrets()}, ""},
	}
}
