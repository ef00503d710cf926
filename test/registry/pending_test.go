package registry

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func (f *fleet) pending(name string) {
	f.t.Helper()
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(f.t.Context(), newLease("acme", name), metav1.CreateOptions{})
	require.NoError(f.t, err)
}

// pairRequests are the requests that create an instance.
var pairRequests = map[string]struct{ method, path, query, contentType string }{
	"create":            {http.MethodPost, "", "?", "application/json"},
	"server-side apply": {http.MethodPatch, "/vm", "?fieldManager=helm&", "application/apply-patch+yaml"},
}

// An instance in the same file as its lease is created while the lease is about to get its Mac.
func TestInstanceOfPendingLease(t *testing.T) {
	for name := range pairRequests {
		t.Run(name, func(t *testing.T) { testInstanceOfPendingLease(t, name) })
	}
}

func testInstanceOfPendingLease(t *testing.T, verb string) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.pending("build")

	type response struct {
		code             int
		retryAfter, body string
		err              error
	}
	// post creates an instance without client-go's retries.
	post := func(name, query string) <-chan response {
		done := make(chan response, 1)
		client := f.servers[0].HTTPClient(t, "acme", "system:authenticated")
		body := `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{"name":"` + name + `"},"spec":{"leaseName":"build","className":"small","imageName":"macos-26"}}`
		go func() {
			request := pairRequests[verb]
			req, err := http.NewRequestWithContext(t.Context(), request.method, f.servers[0].URL("/apis/instance.macrack.io/v1alpha1/namespaces/acme/macosinstances%s", request.path+request.query+query), strings.NewReader(body))
			if err != nil {
				done <- response{err: err}
				return
			}
			req.Header.Set("Content-Type", request.contentType)
			resp, err := client.Do(req)
			if err != nil {
				done <- response{err: err}
				return
			}
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			done <- response{resp.StatusCode, resp.Header.Get("Retry-After"), string(data), err}
		}()
		return done
	}
	// apply creates an instance by server-side apply, as helm and GitOps tools do.
	apply := func(name, query string) <-chan response {
		done := make(chan response, 1)
		client := f.servers[0].HTTPClient(t, "acme", "system:authenticated")
		body := `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{"name":"` + name + `"},"spec":{"leaseName":"build","className":"small","imageName":"macos-26"}}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch,
			f.servers[0].URL("/apis/instance.macrack.io/v1alpha1/namespaces/acme/macosinstances/%s?fieldManager=helm%s", name, query), strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
		go func() {
			resp, err := client.Do(req)
			if err != nil {
				done <- response{err: err}
				return
			}
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			done <- response{resp.StatusCode, resp.Header.Get("Retry-After"), string(data), err}
		}()
		return done
	}
	// inTime advances the clock until there is an answer.
	inTime := func(done <-chan response) response {
		for {
			select {
			case r := <-done:
				require.NoError(t, r.err)
				return r
			case <-time.After(10 * time.Millisecond):
				f.clock.Step(time.Second)
			}
		}
	}

	r := inTime(post("vm", ""))
	assert.Equal(t, http.StatusTooManyRequests, r.code, r.body)
	assert.Equal(t, "1", r.retryAfter, "clients try again by themselves")
	r = inTime(apply("vm", ""))
	assert.Equal(t, http.StatusTooManyRequests, r.code, r.body)
	assert.Equal(t, "1", r.retryAfter, "clients try again by themselves")
	r = inTime(apply("vm", "&dryRun=All"))
	assert.Equal(t, http.StatusCreated, r.code, r.body)
	assert.Empty(t, f.records("acme"), "no rule refused a request")

	dry := <-post("vm", "dryRun=All")
	assert.Equal(t, http.StatusCreated, dry.code, "a dry run need not wait: %s", dry.body)
	assert.Contains(t, dry.body, `"kind":"MacNodeLease"`, "its answer has the owner that the planner sets")

	timers := f.clock.Waiters()
	waiting := post("vm", "")
	require.Eventually(t, func() bool { return f.clock.Waiters() > timers }, time.Minute, time.Millisecond, "it waits")
	require.NoError(t, f.bind("acme", "build", "mac-1"))
	r = <-waiting
	assert.Equal(t, http.StatusCreated, r.code, r.body)
	assert.Len(t, f.getLease("acme", "build").Status.Instances, 1)
	assert.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseBound}, typesOf(f.records("acme")))
}

// If no Mac is free, an instance is refused at once. This is not a rejection by a rule, and is not
// recorded.
func TestInstanceOfLeaseThatWaits(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("globex", "first", "mac-1")
	f.pending("build")
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		_, err := f.acme.InstanceV1alpha1().MacOSInstances("acme").Create(t.Context(), newInstance("acme", "vm", "build"), metav1.CreateOptions{DryRun: dryRun})
		assert.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.ErrorContains(t, err, `not yet: lease "build" has no Mac yet`)
		assert.NotContains(t, err.Error(), "rule")
	}
	assert.True(t, apierrors.IsForbidden(f.create(t.Context(), newInstance("acme", "vm", "none"))))
	reasons := map[string]int{}
	for _, record := range f.records("acme") {
		reasons[record.Details.Reason]++
	}
	assert.Equal(t, map[string]int{"LeasePending": 1, "NoSuchLease": 1}, reasons)
	report := f.compliance("24h")
	assert.Zero(t, report.Rejected)
	assert.EqualValues(t, 2, report.OtherRejections)

	require.NoError(t, f.create(t.Context(), newInstance("globex", "one", "first")))
	require.NoError(t, f.create(t.Context(), newInstance("globex", "two", "first")))
	assert.True(t, apierrors.IsForbidden(f.create(t.Context(), newInstance("globex", "three", "first"))))
	assert.EqualValues(t, 1, f.compliance("24h").Rejected, "a rule's")
}

// A dry run of a lease and its instance succeeds if the real requests would. It stores no lease, so
// the instance is checked without it.
func TestDryRunOfPair(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	before := f.etcd.Revision(t)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), dry)
	require.NoError(t, err)
	instances := f.acme.InstanceV1alpha1().MacOSInstances("acme")
	for name, request := range map[string]func(i *instancev1alpha1.MacOSInstance) error{
		"create": func(i *instancev1alpha1.MacOSInstance) error {
			_, err := instances.Create(t.Context(), i, dry)
			return err
		},
		"server-side apply": func(i *instancev1alpha1.MacOSInstance) error {
			body, err := json.Marshal(map[string]any{"apiVersion": "instance.macrack.io/v1alpha1", "kind": "MacOSInstance", "metadata": map[string]any{"name": i.Name}, "spec": i.Spec})
			require.NoError(t, err)
			_, err = instances.Patch(t.Context(), i.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "helm", DryRun: dry.DryRun})
			return err
		},
	} {
		create := func(image, class string) error {
			i := newInstance("acme", "vm", "build")
			i.Spec.ImageName, i.Spec.ClassName = image, class
			return request(i)
		}
		assert.NoError(t, create("macos-26", "small"), name)
		assert.ErrorContains(t, create("macos-9", "small"), "there is no image", name)
		assert.ErrorContains(t, create("macos-26", "tiny"), "there is no instance class", name)
	}
	assert.Zero(t, f.etcd.Transactions(t, before))
}
