package registry

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/printable"
)

// An extension of a lease moves its floor; the record names the user who extended it.
func TestLengtheningIsRecorded(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	lengthen := func(to string) {
		t.Helper()
		_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Patch(t.Context(), "build", types.MergePatchType, []byte(`{"spec":{"minimumDuration":"`+to+`"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	lengthen("48h")
	f.clock.SetTime(noon.Add(time.Hour))
	f.deleteLease("acme", "build")
	lengthen("72h")
	records := f.records("acme")
	require.Equal(t, []rackv1alpha1.AuditRecordType{rackv1alpha1.LeaseBound, rackv1alpha1.FloorLengthened, rackv1alpha1.LeaseHeld, rackv1alpha1.FloorLengthened}, typesOf(records))
	for i, hours := range map[int]time.Duration{1: 24, 3: 48} {
		r := records[i]
		assert.Equal(t, "acme", r.Actor.Username)
		assert.True(t, r.Details.PreviousEarliestReleaseAt.Time.Equal(noon.Add(hours*time.Hour)), "%s", r.Details.PreviousEarliestReleaseAt)
		assert.True(t, r.Details.EarliestReleaseAt.Time.Equal(noon.Add(hours*time.Hour+24*time.Hour)), "%s", r.Details.EarliestReleaseAt)
		assert.Equal(t, "build", r.Lease.Name)
		assert.Equal(t, "C07AAAAA0001", r.Chassis.SerialNumber)
	}
	assert.Equal(t, rackv1alpha1.ComplianceCompliant, f.compliance("7d").Verdict)

	_, err := f.acme.RackV1alpha1().MacNodeLeases("acme").Patch(t.Context(), "build", types.MergePatchType, []byte(`{"spec":{"minimumDuration":"72h"},"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	assert.Len(t, f.records("acme"), 4, "changes that do not move the floor are not recorded")
}

// A record has the request ID of the server, and the client's ID as a claim.
func TestRequestIDs(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	f.lease("acme", "build", "mac-1")
	for name, tt := range map[string]struct{ sent, claimed string }{
		"an ID":          {"c0ffee00-0000-0000-0000-000000000000", "c0ffee00-0000-0000-0000-000000000000"},
		"none":           {"", ""},
		"no ASCII":       {"a\u202eb\u200bü\x1b[2J", `a\u202eb\u200b\u00fc\x1b[2J`},
		"a long one":     {strings.Repeat("x", 4096), strings.Repeat("x", 61) + "..."},
		"another's name": {"system:admin", "system:admin"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, f.servers[0].URL("/apis/rack.macrack.io/v1alpha1/namespaces/acme/macnodeleases/build"), strings.NewReader(`{"metadata":{"finalizers":null}}`))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/merge-patch+json")
			if tt.sent != "" {
				req.Header["Audit-Id"] = []string{strings.ReplaceAll(tt.sent, "\x1b", "")}
				tt.claimed = strings.ReplaceAll(tt.claimed, `\x1b`, "")
			}
			// Each case has its own user, because identical rejections fold.
			resp, err := f.servers[0].HTTPClient(t, "user-"+strings.ReplaceAll(name, " ", "-"), "system:authenticated").Do(req)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, http.StatusForbidden, resp.StatusCode)
			records := f.records("acme")
			last := records[len(records)-1]
			require.Equal(t, rackv1alpha1.FloorTamperRejected, last.Type)
			assert.Equal(t, tt.claimed, last.ClaimedRequestID)
			assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`, last.RequestID)
			assert.NotEqual(t, tt.sent, last.RequestID)
			assert.Equal(t, last.RequestID, resp.Header.Get("Audit-Id"), "the client must be able to find its record")
		})
	}
}

// Names of users may have any characters. Readers of records, statuses and messages see each of
// them.
func TestUsersWithStrangeNames(t *testing.T) {
	f := newFleet(t, 1)
	f.mac("mac-1", "C07AAAAA0001")
	const name, group = "ad\u200bmin\u202egpj", "gr\u2066oup"
	mallory := f.servers[0].Client(t, name, group, "system:authenticated")
	_, err := mallory.RackV1alpha1().MacNodeLeases("acme").Create(t.Context(), newLease("acme", "build"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, f.bind("acme", "build", "mac-1"))
	const shown = `ad\u200bmin\u202egpj`
	assert.Equal(t, shown, f.getLease("acme", "build").Status.RequestedBy.Username)

	require.NoError(t, f.create(t.Context(), newInstance("acme", "vm", "build")))
	f.start("mac-1", "acme", "vm", 1)
	_, err = mallory.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "vm", &instancev1alpha1.MacOSInstanceStop{Reason: "R\u202e"}, metav1.CreateOptions{})
	assert.ErrorContains(t, err, "must be printable characters on one line")
	_, err = mallory.InstanceV1alpha1().MacOSInstances("acme").Stop(t.Context(), "vm", &instancev1alpha1.MacOSInstanceStop{}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, f.write(f.agent("mac-1"), "acme", "vm", func(s *instancev1alpha1.MacOSInstanceStatus) {
		assert.Equal(t, shown, s.StopRequest.By)
		assert.True(t, printable.IsLine(s.Message), "%q", s.Message)
		s.Message = "panic: \u202e\x1b[31mx"
	}))
	assert.Equal(t, `panic: \u202e\x1b[31mx`, f.getInstance("acme", "vm").Status.Message)
	require.NoError(t, mallory.RackV1alpha1().MacNodeLeases("acme").Delete(t.Context(), "build", metav1.DeleteOptions{}))

	records := f.records("acme")
	assert.Equal(t, shown, records[0].Details.RequestedBy.Username)
	held := records[len(records)-1]
	require.Equal(t, rackv1alpha1.LeaseHeld, held.Type)
	assert.Equal(t, shown, held.Actor.Username)
	assert.Contains(t, held.Actor.Groups, `gr\u2066oup`)
}

// A tenant that requests a serial number learns only whether the Mac is free for it, and the same
// in a dry run.
func TestSerialNumbersTellNothing(t *testing.T) {
	f, n := newFleetWithNamespaces(t)
	f.mac("mac-1", "C07AAAAA0001")
	f.mac("mac-2", "C07AAAAA0002")
	f.mac("mac-3", "C07AAAAA0003")
	_, err := f.admin.RackV1alpha1().MacNodeClasses().Create(t.Context(), &rackv1alpha1.MacNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: baseClass()}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.lease("acme", "build", "mac-1")
	ask := func(namespace, class, serial string, dryRun ...string) error {
		lease := newLease(namespace, "asked")
		lease.Spec.ClassName, lease.Spec.SerialNumber = class, serial
		_, err := f.globex.RackV1alpha1().MacNodeLeases(namespace).Create(t.Context(), lease, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	recorded := func() (n int) { // without the counts of folded rejections, which come when their minute has passed
		for _, record := range f.records("macrack-system") {
			if record.Details.Count == 0 {
				n++
			}
		}
		return n
	}
	for name, tt := range map[string]struct{ class, serial string }{
		"another tenant's Mac":                     {"base", "C07AAAAA0001"},
		"another tenant's Mac, of the wrong class": {"other", "C07AAAAA0001"},
		"a Mac of another class":                   {"other", "C07AAAAA0002"},
		"no Mac":                                   {"base", "C07AAAAA0009"},
	} {
		t.Run(name, func(t *testing.T) {
			f.clock.Step(2 * time.Minute) // keeps rejections of two cases from folding
			before := recorded()
			errs := []error{ask("globex", tt.class, tt.serial, metav1.DryRunAll), ask("globex", tt.class, tt.serial)}
			for _, err := range errs {
				require.Error(t, err)
				want := strings.NewReplacer("C07AAAAA0009", tt.serial, `"base"`, `"`+tt.class+`"`).Replace(`macnodeleases.rack.macrack.io "asked" is forbidden: rule 2 (one tenant per Mac): the Mac of class "base" with serial number C07AAAAA0009 does not exist or is not free; omit spec.serialNumber to get any free Mac of the class`)
				assert.Equal(t, want, err.Error())
			}
			if strings.HasPrefix(name, "another") {
				assert.Greater(t, recorded(), before, "the dry run is recorded")
				records := f.records("macrack-system")
				assert.True(t, slices.ContainsFunc(records[before:], func(r rackv1alpha1.AuditRecord) bool { return strings.Contains(r.Details.Message, "(a dry run)") }))
			} else {
				assert.Equal(t, before, recorded())
			}
		})
	}
	assert.NoError(t, ask("globex", "base", "C07AAAAA0003", metav1.DryRunAll), "the Mac is free")

	assert.ErrorContains(t, ask("acme", "base", "C07AAAAA0001"), `already belongs to lease "build" of this namespace`)
	n.make("acme", "acme-2")
	f.clock.Step(2 * time.Minute)
	before := recorded()
	err = ask("acme", "base", "C07AAAAA0001")
	assert.ErrorContains(t, err, "does not exist or is not free")
	assert.NotContains(t, err.Error(), "build", "the next owner must not learn the former owner's lease")
	assert.Equal(t, before+1, recorded())
}
