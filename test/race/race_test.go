package race

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

func runRace(t *testing.T, change func(*Options)) *Result {
	t.Helper()
	options := NewOptions(t.TempDir())
	options.Out = t.Output()
	change(&options)
	result, err := Run(t.Context(), options)
	require.NoError(t, err)
	t.Log(result)
	t.Logf("%d revisions, %d acknowledgements, %d histories (%d undecided), %d killed, in %s", result.Revisions, result.Acks, result.Tables, result.Undecided, result.Kills, result.Took)
	return result
}

// A short race proof: make race runs the long one.
func TestRace(t *testing.T) {
	// It proves nothing without races, and a run this short does not see all kinds of them.
	var missing []string
	for range 5 {
		result := runRace(t, func(o *Options) { o.Attempts, o.KillEvery = 5000, 3*time.Second })
		require.Zero(t, result.Violations, "%v", result.First)
		assert.GreaterOrEqual(t, result.Attempts, int64(5000))
		assert.Zero(t, result.Undecided)
		assert.Equal(t, rackv1alpha1.ComplianceCompliant, result.Report.Verdict)
		if missing = unseen(result); len(missing) == 0 {
			break
		}
		t.Log("retrying; not seen in this run:", missing)
	}
	assert.Empty(t, missing)
}

// unseen returns the outcomes that did not occur in a run.
func unseen(result *Result) []string {
	var missing []string
	if result.Kills == 0 {
		missing = append(missing, "kills")
	}
	for _, kind := range []rackv1alpha1.AuditRecordType{
		rackv1alpha1.LeaseBound, rackv1alpha1.LeaseHeld, rackv1alpha1.LeaseReleased, rackv1alpha1.InstanceStarted, rackv1alpha1.InstanceStopped,
		rackv1alpha1.InstanceRejected, rackv1alpha1.FloorTamperRejected,
	} {
		if result.Records[kind] == 0 {
			missing = append(missing, string(kind))
		}
	}
	for _, kind := range []string{"instance/create", "lease/bind", "node/create", "instance/identify"} {
		if result.Kinds[kind][0] == 0 || result.Kinds[kind][1] == 0 {
			missing = append(missing, kind+": successes or refusals")
		}
	}
	return missing
}

// Servers that do not compare the inputs of their decisions are detected. That takes another
// program, because no shipped program can skip the comparison.
func TestCheckerSeesFaults(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-tags=faults", "-count=1", "-v", "-run=^TestWithoutCompare$", ".")
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.True(t, bytes.Contains(out, []byte("--- PASS: TestWithoutCompare")), "%s", out)
}

func TestOutcome(t *testing.T) {
	gr := schema.GroupResource{Resource: "leases"}
	for _, tt := range []struct {
		err  error
		want outcome
	}{
		{nil, success},
		{apierrors.NewForbidden(gr, "a", assert.AnError), refusal},
		{apierrors.NewNotFound(gr, "a"), refusal},
		{apierrors.NewAlreadyExists(gr, "a"), refusal},
		{apierrors.NewConflict(gr, "a", assert.AnError), refusal},
		{apierrors.NewConflict(gr, "a", errors.New("the object has been modified; please apply your changes to the latest version and try again")), conflict},
		{apierrors.NewTooManyRequests("again", 1), conflict},
		{apierrors.NewInternalError(assert.AnError), unknown},
		{apierrors.NewServiceUnavailable("later"), unknown},
		{context.Canceled, unknown},
		{&url.Error{Op: "Post", Err: syscall.ECONNREFUSED}, unsent},
	} {
		assert.Equal(t, tt.want, outcomeOf(tt.err), "%v", tt.err)
	}
}

// Timers and tickers fire when another process moves the clock.
func TestClock(t *testing.T) {
	path := t.TempDir() + "/clock"
	ours, err := openClock(path, 0)
	require.NoError(t, err)
	theirs, err := openClock(path, -time.Minute)
	require.NoError(t, err)
	assert.InDelta(t, time.Minute, ours.Now().Sub(theirs.Now()), float64(time.Second))

	timer, stopped := theirs.NewTimer(24*time.Hour), theirs.NewTimer(24*time.Hour)
	ticker := theirs.NewTicker(24 * time.Hour)
	defer ticker.Stop()
	assert.True(t, stopped.Stop())
	assert.False(t, stopped.Stop())
	before := theirs.Now()
	require.NoError(t, ours.move(25*time.Hour))
	assert.GreaterOrEqual(t, (<-timer.C()).Sub(before), 25*time.Hour)
	<-ticker.C()
	require.NoError(t, ours.move(25*time.Hour))
	<-ticker.C()
	assert.False(t, timer.Stop(), "it has fired")
	timer.Reset(time.Hour)
	require.NoError(t, ours.move(2*time.Hour))
	<-timer.C()
	assert.Empty(t, stopped.C())
}
