package registry

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A request with thousands of errors, or with an error in a long value, is answered briefly by all
// verbs. An answer with all errors would cost the square of their number.
func TestAnswersToLargeRequestsAreBrief(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	client := f.servers[0].HTTPClient(t, "acme", "system:authenticated")
	labels := func(n int) string {
		var entries []string
		for i := range n {
			entries = append(entries, fmt.Sprintf(`"-%d":"-"`, i))
		}
		return "{" + strings.Join(entries, ",") + "}"
	}
	const path = "/apis/rack.macrack.io/v1alpha1/namespaces/acme/macnodeleases"
	const manifest = `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":%q,%s},"spec":{"className":"base"}}`
	for name, metadata := range map[string]string{
		"labels":           `"labels":` + labels(1000),
		"many labels":      `"labels":` + labels(10_000),
		"annotations":      `"annotations":` + labels(1000),
		"many annotations": `"annotations":` + labels(10_000),
		"a long label":     `"labels":{"a":"` + strings.Repeat("-", 60_000) + `"}`,
		"a long owner":     `"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"` + strings.Repeat("x", 3_000_000) + `"}]`,
	} {
		for _, request := range [][4]string{
			{"POST", path, "application/json", fmt.Sprintf(manifest, "new", metadata)},
			{"POST", path + "?dryRun=All", "application/json", fmt.Sprintf(manifest, "new", metadata)},
			{"PUT", path + "/build", "application/json", fmt.Sprintf(manifest, "build", metadata)},
			{"PATCH", path + "/build", "application/merge-patch+json", `{"metadata":{` + metadata + `}}`},
			{"PATCH", path + "/build?fieldManager=x&force=true", "application/apply-patch+yaml", fmt.Sprintf(manifest, "build", metadata)},
			{"PATCH", path + "/new?fieldManager=x&force=true", "application/apply-patch+yaml", fmt.Sprintf(manifest, "new", metadata)},
		} {
			answer := f.send(t, client, request[0], request[1], request[2], request[3], http.StatusUnprocessableEntity)
			if name == "labels" {
				assert.Contains(t, string(answer), "errors: Too many: ", "%s", request[0])
			}
			assert.Less(t, len(answer), 64<<10, "%s of %s: %.1000s", request[0], name, answer)
		}
	}
}
