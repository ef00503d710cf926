package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"macrack.io/macrack/pkg/apiserver"
)

// written are objects with durations and quantities in forms that are not canonical.
var written = []struct {
	kind, collection, object string
	// scalars are the fields as JSON, and their names in errors.
	scalars map[string]string
}{
	{"MacNodeLease", "/apis/rack.macrack.io/v1alpha1/namespaces/acme/macnodeleases",
		`{"metadata":{"name":"written"},"spec":{"className":"base","minimumDuration":"1440m","expireAfter":"3d"}}`,
		map[string]string{
			`{"spec":{"minimumDuration":%s}}`: "spec.minimumDuration",
			`{"spec":{"expireAfter":%s}}`:     "spec.expireAfter",
		}},
	{"RackConfig", "/apis/config.macrack.io/v1alpha1/rackconfigs",
		`{"metadata":{"name":"default"},"spec":{"audit":{"retention":"90d"},"imageCache":{"minimumFree":"20480Mi"},"agent":{"heartbeatInterval":"10000ms","offlineAfter":"90s"}}}`,
		map[string]string{
			`{"spec":{"audit":{"retention":%s}}}`:         "spec.audit.retention",
			`{"spec":{"imageCache":{"minimumFree":%s}}}`:  "spec.imageCache.minimumFree",
			`{"spec":{"agent":{"heartbeatInterval":%s}}}`: "spec.agent.heartbeatInterval",
			`{"spec":{"agent":{"offlineAfter":%s}}}`:      "spec.agent.offlineAfter",
		}},
	{"MacNodeClass", "/apis/rack.macrack.io/v1alpha1/macnodeclasses",
		`{"metadata":{"name":"written"},"spec":{"model":"Mac mini","chip":"M4","capacity":{"cpu":10,"memory":"24576Mi","storage":"0.5Ti"},"hostReserved":{"cpu":"2.0","memory":"4096Mi"}}}`,
		map[string]string{
			`{"spec":{"capacity":{"cpu":%s}}}`:         "spec.capacity.cpu",
			`{"spec":{"capacity":{"memory":%s}}}`:      "spec.capacity.memory",
			`{"spec":{"capacity":{"storage":%s}}}`:     "spec.capacity.storage",
			`{"spec":{"hostReserved":{"cpu":%s}}}`:     "spec.hostReserved.cpu",
			`{"spec":{"hostReserved":{"memory":%s}}}`:  "spec.hostReserved.memory",
			`{"spec":{"hostReserved":{"storage":%s}}}`: "spec.hostReserved.storage",
		}},
	{"MacNode", "/apis/rack.macrack.io/v1alpha1/macnodes",
		`{"metadata":{"name":"written"},"spec":{"serialNumber":"C07WRITTEN01","className":"base"}}`, nil},
	{"InstanceClass", "/apis/instance.macrack.io/v1alpha1/instanceclasses",
		`{"metadata":{"name":"written"},"spec":{"resources":{"cpu":4,"memory":8589934592,"storage":"65536Mi"}}}`,
		map[string]string{
			`{"spec":{"resources":{"cpu":%s}}}`:     "spec.resources.cpu",
			`{"spec":{"resources":{"memory":%s}}}`:  "spec.resources.memory",
			`{"spec":{"resources":{"storage":%s}}}`: "spec.resources.storage",
		}},
	{"MacOSImage", "/apis/image.macrack.io/v1alpha1/macosimages",
		`{"metadata":{"name":"written"},"spec":{"contents":[{"name":"macOS","version":"26.1"},{"name":"guest-agent","version":"1.0"}],` +
			`"source":{"reference":"registry.example.com/macos:26.1","digest":"sha256:` + strings.Repeat("0a", 32) + `"},"diskSize":"61440Mi"}}`,
		map[string]string{`{"spec":{"diskSize":%s}}`: "spec.diskSize"}},
	{"MacOSInstance", "/apis/instance.macrack.io/v1alpha1/namespaces/acme/macosinstances",
		`{"metadata":{"name":"written"},"spec":{"leaseName":"build","className":"small","imageName":"macos-26","resources":{"requests":{"macrack.io/macos-vm":1}}}}`, nil},
}

// TestWrittenIsRead checks that an object reads as it was written, in all encodings, and that
// applying it again, or as another manager, changes nothing.
func TestWrittenIsRead(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	client := f.servers[0].HTTPClient(t, "admin", "system:masters")

	for _, w := range written {
		t.Run(w.kind, func(t *testing.T) {
			send := func(method, path, contentType, body string, want int) map[string]any {
				t.Helper()
				return unmarshal(t, f.send(t, client, method, path, contentType, body, want))
			}
			object := unmarshal(t, []byte(w.object))
			object["apiVersion"] = strings.Join(strings.Split(w.collection, "/")[2:4], "/")
			object["kind"] = w.kind
			manifest := string(mustJSON(t, object))
			path := w.collection + "/" + object["metadata"].(map[string]any)["name"].(string)
			same := func(got map[string]any, how string) {
				t.Helper()
				assertContains(t, "spec", object["spec"], got["spec"], how)
			}

			created := send("POST", w.collection, "application/json", manifest, http.StatusCreated)
			same(created, "created")
			live := send("GET", path, "", "", http.StatusOK)
			same(live, "read")

			stored := f.send(t, client, "GET", path, "", "", http.StatusOK, runtime.ContentTypeProtobuf)
			typed, err := runtime.Decode(apiserver.Codecs.UniversalDeserializer(), stored)
			require.NoError(t, err)
			same(unmarshal(t, mustJSON(t, typed)), "read in protobuf")
			same(send("PUT", path, runtime.ContentTypeProtobuf, string(stored), http.StatusOK), "updated in protobuf")
			same(send("PUT", path, "application/yaml", string(mustJSON(t, live)), http.StatusOK), "updated in YAML")

			for _, manager := range []string{"one", "another"} {
				apply := path + "?fieldManager=" + manager
				applied := send("PATCH", apply, string("application/apply-patch+yaml"), manifest, http.StatusOK)
				same(applied, "applied")
				again := send("PATCH", apply, "application/apply-patch+yaml", manifest, http.StatusOK)
				assert.Equal(t, resourceVersion(applied), resourceVersion(again), "applied twice")
				assert.EqualValues(t, 1, again["metadata"].(map[string]any)["generation"], "generation")
			}

			for patch, name := range w.scalars {
				for _, value := range []string{`"3 weeks"`, `""`, "true", `{"hours":24}`, `["8Gi"]`, `"1e999999999"`, `"` + strings.Repeat("1h", 1<<16) + `"`} {
					status := send("PATCH", path, "application/merge-patch+json", fmt.Sprintf(patch, value), http.StatusUnprocessableEntity)
					message := status["message"].(string)
					assert.Contains(t, message, name, "%s of %.20s", name, value)
					assert.Less(t, len(message), 2048, "%s of %.20s", name, value)
					if w.kind != "InstanceClass" { // its spec is immutable
						assert.Contains(t, message, "accepted ", "%s of %.20s", name, value)
					}
				}
			}
		})
	}
}

func (f *fleet) send(t *testing.T, client *http.Client, method, path, contentType, body string, want int, accept ...string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.servers[0].URL("%s", path), bytes.NewReader([]byte(body)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", contentType)
	req.Header["Accept"] = append(accept, "application/json")
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, want, resp.StatusCode, "%s %s %.60s: %s", method, path, body, data)
	return data
}

func unmarshal(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var object map[string]any
	require.NoError(t, json.Unmarshal(data, &object), "%s", data)
	return object
}

func mustJSON(t *testing.T, object any) []byte {
	t.Helper()
	data, err := json.Marshal(object)
	require.NoError(t, err)
	return data
}

func resourceVersion(object map[string]any) any {
	return object["metadata"].(map[string]any)["resourceVersion"]
}

// assertContains asserts that got has all of want, and possibly defaults.
func assertContains(t *testing.T, path string, want, got any, how string) {
	t.Helper()
	m, ok := want.(map[string]any)
	if !ok {
		assert.Equal(t, want, got, "%s, %s", path, how)
		return
	}
	have, _ := got.(map[string]any)
	for key, value := range m {
		assertContains(t, path+"."+key, value, have[key], how)
	}
}
