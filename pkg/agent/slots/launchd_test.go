package slots

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
)

// fast is a clock whose waits end at once.
type fast struct{ clock.RealClock }

func (fast) After(time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	ch <- time.Time{}
	return ch
}

// job is a launchd job.
type job struct {
	ran  []string
	runs func(kickstarts int) bool // whether the job runs after a number of kickstarts
	fail error
}

func (j *job) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	kickstarts := 0
	for _, command := range j.ran {
		if strings.Contains(command, "kickstart") {
			kickstarts++
		}
	}
	if args[0] == "print" {
		if j.runs(kickstarts) {
			return []byte(args[1] + " = {\n\tstate = running\n\tpid = 4711\n}\n"), nil
		}
		return []byte(args[1] + " = {\n\tstate = not running\n\truns = 3\n}\n"), nil
	}
	if _, bounded := ctx.Deadline(); !bounded {
		return nil, errors.New("unbounded")
	}
	j.ran = append(j.ran, name+" "+strings.Join(args, " "))
	return []byte("Could not find service\n"), j.fail
}

func TestLaunchd(t *testing.T) {
	j := &job{runs: func(kickstarts int) bool { return kickstarts == 1 }}
	l := &Launchd{UID: 501, run: j.run, clock: fast{}}
	ended, err := l.Launch("/v/slots/0")
	require.NoError(t, err)
	assert.Nil(t, ended, "launchd does not tell")
	j.runs = func(kickstarts int) bool { return kickstarts == 2 }
	_, err = l.Launch("/v/slots/1")
	require.NoError(t, err)
	assert.Equal(t, []string{"/bin/launchctl kickstart gui/501/io.macrack.vm.0", "/bin/launchctl kickstart gui/501/io.macrack.vm.1"}, j.ran)

	for _, dir := range []contract.SlotDir{"/v/slots/2", "/v/slots/-1", "/v/slots", "/v/slots/x"} {
		_, err := l.Launch(dir)
		require.ErrorContains(t, err, "is not the directory of a slot", "a third VM has no job to run in")
	}
	assert.Len(t, j.ran, 2)

	j.fail = errors.New("exit status 113")
	_, err = l.Launch("/v/slots/0")
	require.ErrorContains(t, err, "launchctl kickstart gui/501/io.macrack.vm.0: exit status 113: Could not find service; run `macrack-agent doctor`")
}

func TestLaunchdTriesAgain(t *testing.T) {
	dir := contract.SlotDir(filepath.Join(t.TempDir(), "0"))
	require.NoError(t, os.Mkdir(string(dir), 0o700))
	// The job of the last VM exits slowly, and launchd ignores the first two kickstarts.
	looks := 0
	j := &job{runs: func(kickstarts int) bool {
		looks++
		return looks < 5 || kickstarts == 3
	}}
	_, err := (&Launchd{UID: 501, run: j.run, clock: fast{}}).Launch(dir)
	require.NoError(t, err)
	assert.Len(t, j.ran, 3)

	// A runner that has exited is not started again.
	require.NoError(t, os.WriteFile(dir.StartedPath(), nil, 0o600))
	j = &job{runs: func(int) bool { return false }}
	_, err = (&Launchd{UID: 501, run: j.run, clock: fast{}}).Launch(dir)
	require.NoError(t, err)
	assert.Len(t, j.ran, 1)
}
