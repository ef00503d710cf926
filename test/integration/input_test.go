package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// send sends a body to a path as acme and returns the answer.
func send(t *testing.T, user, method, path, contentType, body string) (code int, message string) {
	t.Helper()
	c, err := tb.Clientset(user)
	require.NoError(t, err)
	result := c.RackV1alpha1().RESTClient().Verb(method).AbsPath(strings.Split(path, "?")[0]).SetHeader("Content-Type", contentType).Body([]byte(body))
	if _, query, ok := strings.Cut(path, "?"); ok {
		for _, pair := range strings.Split(query, "&") {
			key, value, _ := strings.Cut(pair, "=")
			result = result.Param(key, value)
		}
	}
	answer := result.Do(t.Context())
	answer.StatusCode(&code)
	if err := answer.Error(); err != nil {
		return code, err.Error()
	}
	raw, err := answer.Raw()
	require.NoError(t, err)
	return code, string(raw)
}

const (
	leasesPath    = "/apis/rack.macrack.io/v1alpha1/namespaces/acme/macnodeleases"
	instancesPath = "/apis/instance.macrack.io/v1alpha1/namespaces/acme/macosinstances"
)

func leaseJSON(name, rest string) string {
	return fmt.Sprintf(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":%q},"spec":{"className":"base"}%s}`, name, rest)
}

func leaseSpecJSON(spec string) string {
	return fmt.Sprintf(`{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":"bad"},"spec":%s}`, spec)
}

func instanceJSON(spec string) string {
	return fmt.Sprintf(`{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstance","metadata":{"name":"bad"},"spec":%s}`, spec)
}

// Every invalid request is refused with a clear 4xx, and changes nothing.
func TestBadInput(t *testing.T) {
	reset(t)
	lease := leaseMac(t, acme, "good")
	vm := startInstance(t, acme, "vm", "good")
	mebibyte := strings.Repeat("x", 1<<20)

	for name, tt := range map[string]struct {
		user, method, path, contentType, body string
		code                                  int
		says                                  string
	}{
		// Malformed requests.
		"an unknown field":            {path: leasesPath + "?fieldValidation=Strict", body: leaseSpecJSON(`{"className":"base","colour":"green"}`), code: 400, says: `unknown field "spec.colour"`},
		"a field twice":               {path: leasesPath + "?fieldValidation=Strict", body: leaseSpecJSON(`{"className":"base","className":"pro"}`), code: 400, says: `duplicate field "spec.className"`},
		"a field of the wrong type":   {path: leasesPath, body: leaseSpecJSON(`{"className":7}`), code: 400, says: "className"},
		"no JSON":                     {path: leasesPath, body: `{"apiVersion":`, code: 400, says: "unexpected end of JSON"},
		"nothing":                     {path: leasesPath, body: ``, code: 400},
		"an array":                    {path: leasesPath, body: `[]`, code: 400},
		"invalid protobuf":            {path: leasesPath, contentType: "application/vnd.kubernetes.protobuf", body: "k8s\x00\xff\xff\xff", code: 400},
		"another media type":          {path: leasesPath, contentType: "text/plain", body: "hello", code: 415, says: "accepted media types"},
		"another kind":                {path: leasesPath, body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNode","metadata":{"name":"bad"}}`, code: 400, says: "MacNode"},
		"another group's kind":        {path: leasesPath, body: `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"bad"}}`, code: 400, says: "coordination.k8s.io"},
		"our kind in another group":   {path: leasesPath, body: `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":"bad"},"spec":{"className":"base"}}`, code: 400, says: "instance.macrack.io"},
		"an unknown version":          {path: leasesPath, body: `{"apiVersion":"rack.macrack.io/v1","kind":"MacNodeLease","metadata":{"name":"bad"},"spec":{"className":"base"}}`, code: 400, says: "v1"},
		"another namespace":           {path: leasesPath, body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLease","metadata":{"name":"bad","namespace":"globex"},"spec":{"className":"base"}}`, code: 400, says: "namespace"},
		"a list":                      {path: leasesPath, body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNodeLeaseList","items":[]}`, code: 400},
		"Kubernetes' path, our kind":  {path: "/apis/coordination.k8s.io/v1/namespaces/acme/leases", body: leaseJSON("bad", ""), code: 400},
		"an unknown dry run":          {path: leasesPath + "?dryRun=Some", body: leaseJSON("bad", ""), code: 422, says: "dryRun"},
		"an unknown field validation": {path: leasesPath + "?fieldValidation=Lax", body: leaseJSON("bad", ""), code: 422, says: "fieldValidation"},

		// Values out of bounds.
		"no class and no default":         {path: leasesPath, body: leaseSpecJSON(`{}`), code: 422, says: "spec.className"},
		"an unknown class":                {path: leasesPath, body: leaseSpecJSON(`{"className":"quantum"}`), code: 422, says: "there is no such class"},
		"an unknown serial":               {path: leasesPath, body: leaseSpecJSON(`{"className":"base","serialNumber":"NOSUCH0001"}`), code: 403, says: "with serial number NOSUCH0001 does not exist or is not free"},
		"a serial of another class":       {path: leasesPath, body: leaseSpecJSON(`{"className":"pro","serialNumber":"SIM0000003"}`), code: 403, says: `the Mac of class "pro" with serial number SIM0000003 does not exist or is not free`},
		"a serial that is leased already": {path: leasesPath, body: leaseSpecJSON(`{"className":"base","serialNumber":"` + lease.Status.SerialNumber + `"}`), code: 403, says: "already belongs to lease"},
		"a serial that is a path":         {path: leasesPath, body: leaseSpecJSON(`{"className":"base","serialNumber":"../macnodes/mac-1"}`), code: 422, says: "spec.serialNumber"},
		"under a day":                     {path: leasesPath, body: leaseSpecJSON(`{"className":"base","minimumDuration":"23h59m59s"}`), code: 422, says: "rule 3 (at least 24 hours)"},
		"no time at all":                  {path: leasesPath, body: leaseSpecJSON(`{"className":"base","minimumDuration":"0s"}`), code: 422, says: "rule 3 (at least 24 hours)"},
		"a negative duration":             {path: leasesPath, body: leaseSpecJSON(`{"className":"base","minimumDuration":"-24h"}`), code: 422, says: "rule 3 (at least 24 hours)"},
		"a huge duration":                 {path: leasesPath, body: leaseSpecJSON(`{"className":"base","minimumDuration":"2562047h47m16s"}`), code: 422, says: "rule 3 (at least 24 hours)"},
		"a duration that overflows":       {path: leasesPath, body: leaseSpecJSON(`{"className":"base","minimumDuration":"9999999999h"}`), code: 422, says: "spec.minimumDuration"},
		"an invalid duration":             {path: leasesPath, body: leaseSpecJSON(`{"className":"base","minimumDuration":"a day"}`), code: 422, says: "accepted units"},
		"it expires before its floor":     {path: leasesPath, body: leaseSpecJSON(`{"className":"base","expireAfter":"1h"}`), code: 422, says: "spec.expireAfter"},
		"images without end":              {path: leasesPath, body: leaseSpecJSON(`{"className":"base","prefetchImages":["` + strings.Repeat(`i","`, 10000) + `i"]}`), code: 422, says: "spec.prefetchImages"},
		"a name of 1 MiB":                 {path: leasesPath, body: leaseJSON(mebibyte, ""), code: 422, says: "metadata.name"},
		"an invalid name":                 {path: leasesPath, body: leaseJSON("../../etc", ""), code: 422, says: "metadata.name"},
		"a generateName of 1 MiB":         {path: leasesPath, body: strings.Replace(leaseJSON("", ""), `"name":""`, `"generateName":"`+strings.ToUpper(mebibyte)+`"`, 1), code: 422},
		"a label of 1 MiB":                {path: leasesPath, body: strings.Replace(leaseJSON("bad", ""), `"name":"bad"`, `"name":"bad","labels":{"a":"`+mebibyte+`"}`, 1), code: 422, says: "metadata.labels"},
		"annotations of 1 MiB":            {path: leasesPath, body: strings.Replace(leaseJSON("bad", ""), `"name":"bad"`, `"name":"bad","annotations":{"a":"`+mebibyte+`"}`, 1), code: 422, says: "metadata.annotations"},
		"a body of 4 MiB":                 {path: leasesPath, body: strings.Replace(leaseJSON("bad", ""), `"name":"bad"`, `"name":"bad","annotations":{"a":"`+strings.Repeat(mebibyte, 4)+`"}`, 1), code: 413},
		"an instance without a lease":     {path: instancesPath, body: instanceJSON(`{"className":"small","imageName":"macos-15-xcode-16"}`), code: 422, says: "spec.leaseName"},
		"two of the resource":             {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16","resources":{"requests":{"macrack.io/macos-vm":"2"}}}`), code: 422, says: "rule 1 (two VMs per Mac)"},
		"none of the resource":            {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16","resources":{"requests":{"macrack.io/macos-vm":"0"}}}`), code: 422, says: "macrack.io/macos-vm"},
		"half of the resource":            {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16","resources":{"requests":{"macrack.io/macos-vm":"500m"}}}`), code: 422, says: "macrack.io/macos-vm"},
		"another resource":                {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16","resources":{"requests":{"macrack.io/macos-vm":"1","cpu":"1"}}}`), code: 422, says: "cpu"},
		"an unknown image":                {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"beos"}`), code: 403, says: `there is no image "beos"`},
		"an unknown instance class":       {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"tiny","imageName":"macos-15-xcode-16"}`), code: 403, says: `there is no instance class "tiny"`},
		"too large for the Mac":           {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"large","imageName":"macos-15-xcode-16"}`), code: 403, says: "no room"},
		"a lease in another namespace":    {path: instancesPath, body: instanceJSON(`{"leaseName":"globex/good","className":"small","imageName":"macos-15-xcode-16"}`), code: 422, says: "spec.leaseName"},
		"a script of 1 MiB":               {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16","startupScript":"` + mebibyte + `"}`), code: 422, says: "spec.startupScript"},
		"an invalid SSH key":              {path: instancesPath, body: instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16","sshAuthorizedKeys":["rm -rf /"]}`), code: 422, says: "spec.sshAuthorizedKeys"},
		"an unknown quarantine policy":    {user: admin, method: http.MethodPatch, path: "/apis/config.macrack.io/v1alpha1/rackconfigs/default", contentType: "application/merge-patch+json", body: `{"spec":{"quarantine":{"reboot":"Always"}}}`, code: 422, says: "spec.quarantine.reboot"},
		"a retention under 90 days":       {user: admin, method: http.MethodPatch, path: "/apis/config.macrack.io/v1alpha1/rackconfigs/default", contentType: "application/merge-patch+json", body: `{"spec":{"audit":{"retention":"24h"}}}`, code: 422, says: "spec.audit.retention"},
		"a second configuration":          {user: admin, path: "/apis/config.macrack.io/v1alpha1/rackconfigs", body: `{"apiVersion":"config.macrack.io/v1alpha1","kind":"RackConfig","metadata":{"name":"other"}}`, code: 422, says: "default"},
		"a serial that another Mac has":   {user: admin, path: "/apis/rack.macrack.io/v1alpha1/macnodes", body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"MacNode","metadata":{"name":"twin"},"spec":{"serialNumber":"SIM0000001","className":"base"}}`, code: 422, says: "SIM0000001"},
		"unknown contents":                {user: admin, path: "/apis/image.macrack.io/v1alpha1/macosimages", body: `{"apiVersion":"image.macrack.io/v1alpha1","kind":"MacOSImage","metadata":{"name":"bad"},"spec":{"contents":[{"name":"Windows","version":"11"}],"source":{"reference":"registry.example.com/a:b","digest":"sha256:25a3cd41d55dae3fb2df767932179e50ff10357b78237901c62c803803cacea4"},"diskSize":"60Gi"}}`, code: 422, says: "Windows"},
		"a report of an unknown window":   {user: admin, method: http.MethodGet, path: "/apis/rack.macrack.io/v1alpha1/compliancereports/everything", code: 404, says: "a report is named after its window"},

		// Fields that only the server writes.
		"a forged finalizer":               {path: leasesPath, body: strings.Replace(leaseJSON("bad", ""), `"name":"bad"`, `"name":"bad","finalizers":["rack.macrack.io/floor"]`, 1), code: 422, says: "only the server adds finalizers"},
		"a forged finalizer, later":        {method: http.MethodPatch, path: leasesPath + "/good", contentType: "application/merge-patch+json", body: `{"metadata":{"finalizers":["macrack.io/floor","macrack.io/vm"]}}`, code: 422, says: "macrack.io/vm"},
		"a forged owner":                   {path: instancesPath, body: strings.Replace(instanceJSON(`{"leaseName":"good","className":"small","imageName":"macos-15-xcode-16"}`), `"name":"bad"`, `"name":"bad","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"1"}]`, 1), code: 403, says: "an instance is owned by its lease alone"},
		"the class of a lease":             {method: http.MethodPatch, path: leasesPath + "/good", contentType: "application/merge-patch+json", body: `{"spec":{"className":"pro"}}`, code: 422, says: "spec.className"},
		"the Mac of a lease":               {method: http.MethodPatch, path: leasesPath + "/good", contentType: "application/merge-patch+json", body: `{"spec":{"serialNumber":"SIM0000003"}}`, code: 422, says: "spec.serialNumber"},
		"the lease of an instance":         {method: http.MethodPatch, path: instancesPath + "/vm", contentType: "application/merge-patch+json", body: `{"spec":{"leaseName":"other"}}`, code: 422, says: "field is immutable"},
		"the image of an instance":         {method: http.MethodPatch, path: instancesPath + "/vm", contentType: "application/merge-patch+json", body: `{"spec":{"imageName":"macos-26-xcode-26"}}`, code: 422, says: "field is immutable"},
		"an instance's finalizer":          {user: admin, method: http.MethodPatch, path: instancesPath + "/vm", contentType: "application/merge-patch+json", body: `{"metadata":{"finalizers":null}}`, code: 403, says: "macrack.io/vm"},
		"a record":                         {path: "/apis/rack.macrack.io/v1alpha1/namespaces/acme/auditrecords", body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"AuditRecord","metadata":{"name":"bad"},"type":"LeaseReleased"}`, code: 403, says: "forbidden"},
		"a record, by an admin":            {user: admin, path: "/apis/rack.macrack.io/v1alpha1/namespaces/acme/auditrecords", body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"AuditRecord","metadata":{"name":"bad"},"type":"LeaseReleased","chassis":{"serialNumber":"SIM0000001"}}`, code: 403, says: "the ledger is written by the server"},
		"an end to records":                {user: admin, method: http.MethodDelete, path: "/apis/rack.macrack.io/v1alpha1/namespaces/acme/auditrecords", code: 405},
		"a report":                         {user: admin, path: "/apis/rack.macrack.io/v1alpha1/compliancereports", body: `{"apiVersion":"rack.macrack.io/v1alpha1","kind":"ComplianceReport","metadata":{"name":"90d"}}`, code: 405},
		"a changed identity":               {user: admin, method: http.MethodPatch, path: instancesPath + "/vm/status", contentType: "application/merge-patch+json", body: `{"status":{"machineID":"AAAAAAAAAAAAAAAAAAAAAA=="}}`, code: 422, says: "status.machineID"},
		"an unknown phase":                 {user: admin, method: http.MethodPatch, path: instancesPath + "/vm/status", contentType: "application/merge-patch+json", body: `{"status":{"phase":"Flying"}}`, code: 422, says: "status.phase"},
		"an unknown phase of a lease":      {user: admin, method: http.MethodPatch, path: leasesPath + "/good/status", contentType: "application/merge-patch+json", body: `{"status":{"phase":"Sublet"}}`, code: 422, says: "status.phase"},
		"back to the phase before binding": {user: admin, method: http.MethodPatch, path: leasesPath + "/good/status", contentType: "application/merge-patch+json", body: `{"status":{"phase":"Pending"}}`, code: 403, says: "rule 3"},
		"a stop without end":               {path: instancesPath + "/vm/stop", body: `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","gracePeriodSeconds":999999999999}`, code: 422, says: "gracePeriodSeconds"},
		"an unknown subresource":           {user: admin, path: leasesPath + "/good/sublet", body: `{}`, code: 404},
		"status by POST":                   {user: admin, path: leasesPath + "/good/status", body: leaseJSON("good", ""), code: 405},
		"an absent lease":                  {method: http.MethodPut, path: leasesPath + "/absent", body: leaseJSON("absent", ""), code: 404, says: "not found"},
		"an apply without a manager":       {method: http.MethodPatch, path: leasesPath + "/good", contentType: "application/apply-patch+yaml", body: leaseJSON("good", ""), code: 422, says: "fieldManager"},
		"an invalid patch":                 {method: http.MethodPatch, path: leasesPath + "/good", contentType: "application/json-patch+json", body: `[{"op":"explode","path":"/spec"}]`, code: 422},
		"a patch of an absent field":       {method: http.MethodPatch, path: leasesPath + "/good", contentType: "application/json-patch+json", body: `[{"op":"remove","path":"/spec/colour"}]`, code: 422},

		// Tricks with versions.
		"an old version":              {method: http.MethodPut, path: leasesPath + "/good", body: strings.Replace(leaseJSON("good", ""), `"name":"good"`, `"name":"good","labels":{"a":"b"},"resourceVersion":"1"`, 1), code: 409, says: "the object has been modified"},
		"another object's version":    {method: http.MethodPut, path: leasesPath + "/good", body: strings.Replace(leaseJSON("good", ""), `"name":"good"`, `"name":"good","labels":{"a":"b"},"resourceVersion":"`+vm.ResourceVersion+`"`, 1), code: 409, says: "the object has been modified"},
		"a non-numeric version":       {method: http.MethodPut, path: leasesPath + "/good", body: strings.Replace(leaseJSON("good", ""), `"name":"good"`, `"name":"good","labels":{"a":"b"},"resourceVersion":"soon"`, 1), code: 400},
		"another object's UID":        {method: http.MethodPut, path: leasesPath + "/good", body: strings.Replace(leaseJSON("good", ""), `"name":"good"`, `"name":"good","labels":{"a":"b"},"uid":"`+string(vm.UID)+`"`, 1), code: 409, says: "UID"},
		"a name that is not the path": {method: http.MethodPut, path: leasesPath + "/good", body: leaseJSON("other", ""), code: 400, says: "name"},
		"deletion of another UID":     {method: http.MethodDelete, path: leasesPath + "/good", body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"` + string(vm.UID) + `"}}`, code: 409},
		"deletion of an old version":  {method: http.MethodDelete, path: leasesPath + "/good", body: `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"resourceVersion":"1"}}`, code: 409},
		"a forged continue token":     {method: http.MethodGet, path: leasesPath + "?limit=1&continue=Zm9yZ2Vk", code: 400, says: "continue"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.user == "" {
				tt.user = acme
			}
			if tt.method == "" {
				tt.method = http.MethodPost
			}
			if tt.contentType == "" {
				tt.contentType = "application/json"
			}
			before := withoutRecords(snapshot(t))
			code, message := send(t, tt.user, tt.method, tt.path, tt.contentType, tt.body)
			if len(message) > 2000 {
				message = message[:1000] + "..." + message[len(message)-1000:]
			}
			assert.Equal(t, tt.code, code, message)
			assert.Contains(t, message, tt.says)
			assert.NotContains(t, message, "/registry/", "the message must not show storage keys")
			assert.Equal(t, before, withoutRecords(snapshot(t)), "a refused request changes nothing")
		})
	}

	t.Run("the status and the binding in a tenant's request are dropped", func(t *testing.T) {
		code, message := send(t, acme, http.MethodPost, leasesPath, "application/json", leaseJSON("dropped",
			`,"status":{"phase":"Bound","nodeName":"mac-1","serialNumber":"SIM0000001","boundAt":"2020-01-01T00:00:00Z","earliestReleaseAt":"2020-01-01T00:00:01Z","conditions":[{"type":"Forged","status":"True","reason":"X","message":"","lastTransitionTime":"2020-01-01T00:00:00Z"}]}`))
		require.Equal(t, http.StatusCreated, code, message)
		assert.NotContains(t, message, "2020-01-01")
		kubectl(t, acme, "wait", "--for=condition=Bound", leases+"/dropped", "--timeout="+patience.String())
		dropped := getLease(t, acme, "dropped")
		assert.NotEqual(t, lease.Status.NodeName, dropped.Status.NodeName)
		assert.Nil(t, meta.FindStatusCondition(dropped.Status.Conditions, "Forged"))
		assert.True(t, dropped.Status.BoundAt.After(lease.Status.BoundAt.Add(-1)))
	})

	t.Run("kubectl finds an unknown field", func(t *testing.T) {
		said := createFails(t, acme, strings.Replace(leaseManifest("bad"), "className: base", "className: base, colour: green", 1))
		assert.Contains(t, said, `unknown field "spec.colour"`)
	})
	assertCompliant(t)
}

// withoutRecords drops the keys that a refusal itself writes: its record, the head of the chain,
// and the time.
func withoutRecords(revisions map[string]int64) map[string]int64 {
	for key := range revisions {
		if strings.Contains(key, "/auditrecords/") || strings.Contains(key, "/index/ledger-") || strings.Contains(key, "/index/clock/") {
			delete(revisions, key)
		}
	}
	return revisions
}

// Many clients edit one lease at once: late ones get a conflict, and every accepted edit is kept.
func TestConcurrentEdits(t *testing.T) {
	reset(t)
	leaseMac(t, acme, "shared")
	const editors, edits = 8, 5
	var conflicts atomic.Int32
	var all sync.WaitGroup
	for editor := range editors {
		c := client(t, acme).RackV1alpha1().MacNodeLeases(acme)
		all.Go(func() {
			for edit := range edits {
				err := retry.OnError(retry.DefaultBackoff, func(err error) bool {
					if apierrors.IsConflict(err) {
						conflicts.Add(1)
					}
					return apierrors.IsConflict(err)
				}, func() error {
					lease, err := c.Get(t.Context(), "shared", metav1.GetOptions{})
					if err != nil {
						return err
					}
					metav1.SetMetaDataLabel(&lease.ObjectMeta, fmt.Sprintf("editor-%d-%d", editor, edit), "was-here")
					_, err = c.Update(t.Context(), lease, metav1.UpdateOptions{})
					return err
				})
				if !apierrors.IsConflict(err) { // an editor with too many conflicts gives up
					assert.NoError(t, err)
				}
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"editor-%d-%d":"was-here"}}}`, editor, edit)
				_, err = c.Patch(t.Context(), "shared", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				assert.NoError(t, err, "the server retries a patch without a version")
			}
		})
	}
	all.Wait()
	assert.Positive(t, conflicts.Load(), "there was no conflict: the test tests nothing")
	lease := getLease(t, acme, "shared")
	assert.Len(t, lease.Annotations, editors*edits)
	assert.Equal(t, rackv1alpha1.MacNodeLeaseBound, lease.Status.Phase)
}
