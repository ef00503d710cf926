package github

import (
	"flag"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/runners/pkg/github/githubtest"
	"macrack.io/macrack/runners/pkg/observe"
)

var jobs = flag.Int("jobs", 24, "the number of jobs of TestBursts")

// TestBursts runs jobs in bursts over four Macs, with runners that die, faults of GitHub and
// restarts of the adapter. Each job runs once, on a machine that has run nothing before: the
// stand-in fails on any other.
func TestBursts(t *testing.T) {
	const macs, slots = 4, 8
	w := newWorldOf(t, macs)
	w.start()
	waits := w.singles(5)
	faults := []func(){
		w.start,
		w.killRunner,
		w.github.DropSession,
		w.github.ExpireToken,
		func() { w.github.Fail(3, http.StatusTooManyRequests) },
	}
	killed := 0
	for queued := 0; queued < *jobs; queued += slots {
		for range min(slots, *jobs-queued) {
			w.github.Queue(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		faults[killed%len(faults)]()
		killed++
	}
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(w.github.Jobs(), func(j githubtest.Job) bool { return j.EndedAt.IsZero() })
	}, 20*time.Minute, 100*time.Millisecond)
	once, twice, lost, failed := 0, 0, 0, 0
	runners := map[string]int{}
	for _, j := range w.github.Jobs()[6:] {
		switch {
		case j.Starts == 1:
			once++
		case j.Starts > 1:
			twice++
		default:
			lost++
		}
		if j.Result != "succeeded" {
			failed++
		}
		runners[j.RunnerName]++
		assert.Equal(t, 1, runners[j.RunnerName], "each job has a machine of its own")
	}
	t.Logf("runners: jobs=%d ran_once=%d twice=%d lost=%d failed_by_kills=%d faults=%d warm_p50=%s", *jobs, once, twice, lost, failed, killed, waits[len(waits)/2])
	assert.Equal(t, *jobs, once)
	assert.Zero(t, twice+lost)
}

// singles runs single jobs on warm machines, and returns their waits, sorted.
func (w *world) singles(n int) []time.Duration {
	w.Helper()
	var waits []time.Duration
	for i := range n + 1 {
		w.github.Queue(0)
		w.eventually("the job ends", func() bool { return !w.github.Jobs()[i].EndedAt.IsZero() })
		if j := w.github.Jobs()[i]; i > 0 { // the first one waits for a Mac
			waits = append(waits, j.StartedAt.Sub(j.QueuedAt).Round(time.Millisecond))
		}
		time.Sleep(time.Second)
	}
	slices.Sort(waits)
	return waits
}

// killRunner kills the guest of a machine with a job.
func (w *world) killRunner() {
	w.Helper()
	instances, err := w.client.InstanceV1alpha1().MacOSInstances(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: observe.LabelJob})
	require.NoError(w, err)
	if n := len(instances.Items); n > 0 {
		w.macs.KillGuest(instances.Items[rand.IntN(n)].UID)
	}
}
