package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

type fakeJobs struct {
	stopped []string
	// on is called when a job is stopped.
	on func(label string)
}

func (f *fakeJobs) agent() []string          { return []string{"agent"} }
func (f *fakeJobs) slots() []string          { return []string{"vm.0", "vm.1"} }
func (f *fakeJobs) remainingSteps() []string { return []string{"sudo rm x"} }
func (f *fakeJobs) stop(_ context.Context, label string) error {
	f.stopped = append(f.stopped, label)
	if f.on != nil {
		f.on(label)
	}
	return nil
}

// impatient is a clock whose waits end at once.
type impatient struct {
	clock.RealClock
	now time.Time
}

func (c *impatient) Now() time.Time { return c.now }
func (c *impatient) After(d time.Duration) <-chan time.Time {
	c.now = c.now.Add(d)
	ch := make(chan time.Time, 1)
	ch <- c.now
	return ch
}

type installed struct {
	*uninstaller
	jobs *fakeJobs
	out  *bytes.Buffer
	mac  *rackv1alpha1.MacNode
	err  error
}

func newInstalled(t *testing.T) *installed {
	dir, err := os.MkdirTemp("", "un")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	state := filepath.Join(dir, "state")
	for _, sub := range []string{"slots/0/disk", "slots/1", "images/x", "pki"} {
		require.NoError(t, os.MkdirAll(filepath.Join(state, sub), 0o700))
	}
	for _, file := range []string{"kubeconfig", "state.json", "reboots.json", "agent.lock", "slots/0/lock", "slots/0/disk/disk.img", "slots/1/lock", "pki/agent-client-current.pem"} {
		require.NoError(t, os.WriteFile(filepath.Join(state, file), []byte("x"), 0o600))
	}
	i := &installed{jobs: &fakeJobs{}, out: &bytes.Buffer{}, mac: &rackv1alpha1.MacNode{}}
	i.uninstaller = &uninstaller{
		stateDir: state, jobs: i.jobs, node: "mac-1", clock: &impatient{now: time.Now()}, out: i.out,
		mac: func(context.Context) (*rackv1alpha1.MacNode, error) { return i.mac, i.err },
	}
	return i
}

func (i *installed) lease() {
	at := metav1.NewTime(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))
	i.mac.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build"}
	i.mac.Status.EarliestReleaseAt = &at
}

func TestUninstall(t *testing.T) {
	i := newInstalled(t)
	require.NoError(t, i.run(t.Context()))
	assert.NoDirExists(t, i.stateDir)
	assert.Equal(t, []string{"agent", "vm.0", "vm.1"}, i.jobs.stopped, "first the agent, which would start again what ends")
	for _, says := range []string{"sudo rm x", "kubectl delete macnode mac-1", "kubectl delete node mac-1"} {
		assert.Contains(t, i.out.String(), says)
	}
	require.NoError(t, i.run(t.Context()), "again")
}

func TestUninstallKeepsForeignFiles(t *testing.T) {
	i := newInstalled(t)
	diary := filepath.Join(i.stateDir, "diary.txt")
	require.NoError(t, os.WriteFile(diary, nil, 0o600))
	require.NoError(t, i.run(t.Context()))
	assert.FileExists(t, diary)
	assert.NoFileExists(t, filepath.Join(i.stateDir, "kubeconfig"))
	assert.Contains(t, i.out.String(), "Kept files that do not belong to the agent: "+diary)
}

func TestUninstallRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*testing.T, *installed)
		says   string
	}{
		{"a lease has it", func(_ *testing.T, i *installed) { i.lease() }, "lease acme/build holds Mac mac-1 until at least 2026-08-01T12:00:00Z"},
		{"the cluster does not answer", func(_ *testing.T, i *installed) { i.err = errors.New("no route") }, "the lease of Mac mac-1 is unknown: no route"},
		{"a virtual machine runs", func(t *testing.T, i *installed) {
			lock, err := i.slot(1).TryLock()
			require.NoError(t, err)
			t.Cleanup(lock.Unlock)
		}, "virtual machines running on this Mac: 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newInstalled(t)
			tt.change(t, i)
			err := i.run(t.Context())
			require.ErrorContains(t, err, tt.says)
			require.ErrorContains(t, err, `set spec.maintenance of MacNode "mac-1" and wait until it is free, or use --force`)
			assert.Empty(t, i.jobs.stopped, "a refusal stops nothing")
			assert.FileExists(t, filepath.Join(i.stateDir, "kubeconfig"))
			assert.FileExists(t, filepath.Join(i.stateDir, "slots/0/disk/disk.img"))
		})
	}
}

func TestUninstallForced(t *testing.T) {
	i := newInstalled(t)
	i.lease()
	i.force = true
	require.NoError(t, i.run(t.Context()))
	assert.NoDirExists(t, i.stateDir)
	assert.Contains(t, i.out.String(), "Forced despite: lease acme/build holds Mac mac-1")

	// The MacNode is already deleted, so --force is not needed.
	i = newInstalled(t)
	i.mac, i.err = nil, apierrors.NewNotFound(rackv1alpha1.Resource("macnodes"), "mac-1")
	require.NoError(t, i.run(t.Context()))
	assert.NotContains(t, i.out.String(), "Forced")
}

func TestUninstallRefusesWhileRunning(t *testing.T) {
	i := newInstalled(t)
	agentLock, err := contract.TryLockFile(filepath.Join(i.stateDir, "agent.lock"))
	require.NoError(t, err)
	require.ErrorContains(t, i.run(t.Context()), "the agent is running; stop it")
	assert.FileExists(t, filepath.Join(i.stateDir, "kubeconfig"))

	i.jobs.on = func(label string) {
		if label == "agent" {
			agentLock.Unlock()
		}
	}
	i.force = true
	lock, err := i.slot(0).TryLock()
	require.NoError(t, err)
	defer lock.Unlock()
	require.ErrorContains(t, i.run(t.Context()), "does not stop", "nothing is removed under a virtual machine")
	assert.FileExists(t, filepath.Join(i.stateDir, "slots/0/disk/disk.img"))
}
