package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/caches"
	"macrack.io/macrack/pkg/agent/credentials"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// askTimeout bounds the request for the lease of the Mac.
	askTimeout = 20 * time.Second
	// endTimeout is how long a process may take to exit.
	endTimeout = time.Minute
	endPoll    = 200 * time.Millisecond
)

// ours are the names that an agent and its package create in the state directory. No other file is
// removed.
var ours = []string{"slots", "caches", "images", "state.json", "state.json.garbled", "reboots.json", kubeconfigName, certDirName, "agent.lock", ".metadata_never_index"}

// jobs are the launchd jobs of this Mac; other systems have none.
type jobs interface {
	// stop stops a job and removes it permanently from the login session.
	stop(ctx context.Context, label string) error
	// agent returns the labels of the agent's jobs.
	agent() []string
	slots() []string
	// remainingSteps lists the remaining tasks of an administrator of the Mac.
	remainingSteps() []string
}

type uninstaller struct {
	stateDir string
	force    bool
	jobs     jobs
	mac      func(ctx context.Context) (*rackv1alpha1.MacNode, error)
	node     string
	clock    clock.Clock
	out      io.Writer
}

func newUninstallCommand() *cobra.Command {
	u := &uninstaller{stateDir: defaultStateDir, jobs: newJobs(), clock: clock.RealClock{}}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the agent, its keys and its data from this Mac",
		Long: `Uninstall removes the agent's jobs, certificates, keys and images, and the files of virtual machines. It refuses while the
Mac is leased, a virtual machine runs, or the cluster is unreachable. --force overrides this: it forces the virtual machines off and erases
their disks, and the lease keeps the Mac, which is Offline, until an administrator releases it (docs/runbooks.md, "Lost Mac").`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if u.stateDir, err = filepath.Abs(u.stateDir); err != nil {
				return err
			}
			u.out = cmd.OutOrStdout()
			_, u.node, err = credentials.Read(filepath.Join(u.stateDir, certDirName))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			u.mac = func(ctx context.Context) (*rackv1alpha1.MacNode, error) {
				return ownMacNode(ctx, filepath.Join(u.stateDir, kubeconfigName), u.node)
			}
			return u.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&u.stateDir, "state-dir", u.stateDir, "The agent's state directory.")
	cmd.Flags().BoolVar(&u.force, "force", u.force, "Uninstall even if the Mac is leased, a virtual machine runs, or the cluster is unreachable. Erases the disks of the virtual machines.")
	return cmd
}

func (u *uninstaller) run(ctx context.Context) error {
	if err := u.checkUnused(ctx); err != nil {
		return err
	}
	for _, label := range u.jobs.agent() {
		if err := u.jobs.stop(ctx, label); err != nil {
			return err
		}
	}
	if err := u.waitUnlocked(ctx, filepath.Join(u.stateDir, "agent.lock")); err != nil {
		return fmt.Errorf("the agent is running; stop it, then uninstall again: %w", err)
	}
	for slot := range rules.MaxVMsPerMac {
		if err := u.end(ctx, u.slot(slot)); err != nil {
			return err
		}
	}
	for _, label := range u.jobs.slots() {
		if err := u.jobs.stop(ctx, label); err != nil {
			return err
		}
	}
	left, err := u.remove()
	if err != nil {
		return err
	}
	u.printRemaining(left)
	return nil
}

// checkUnused returns an error while the Mac is leased or may be leased, or while a virtual machine
// runs.
func (u *uninstaller) checkUnused(ctx context.Context) error {
	var why []string
	if u.node != "" {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		mac, err := u.mac(asking)
		switch {
		case apierrors.IsNotFound(err): // an administrator has removed it from the fleet
		case err != nil:
			why = append(why, fmt.Sprintf("the lease of Mac %s is unknown: %v", u.node, err))
		case mac.Status.LeaseRef != nil:
			lease := mac.Status.LeaseRef
			until := ""
			if at := mac.Status.EarliestReleaseAt; at != nil {
				until = fmt.Sprintf(" until at least %s", at.UTC().Format(time.RFC3339))
			}
			why = append(why, fmt.Sprintf("lease %s/%s holds Mac %s%s", lease.Namespace, lease.Name, u.node, until))
		}
	}
	if running := u.running(); len(running) > 0 {
		why = append(why, fmt.Sprintf("virtual machines running on this Mac: %d", len(running)))
	}
	if len(why) == 0 {
		return nil
	}
	reasons := strings.Join(why, ", ")
	if !u.force {
		return fmt.Errorf("cannot uninstall: %s; set spec.maintenance of MacNode %q and wait until it is free, or use --force", reasons, u.nodeName())
	}
	fmt.Fprintf(u.out, "Forced despite: %s\n", reasons)
	return nil
}

func (u *uninstaller) slot(n int) contract.SlotDir {
	return contract.SlotDir(filepath.Join(u.stateDir, "slots", strconv.Itoa(n)))
}

// running returns the slots that a runner holds.
func (u *uninstaller) running() []int {
	var running []int
	for slot := range rules.MaxVMsPerMac {
		if locked(u.slot(slot).LockPath()) {
			running = append(running, slot)
		}
	}
	return running
}

// locked reports whether a process holds the lock. It does not create the file.
func locked(path string) bool {
	if _, err := os.Stat(path); err != nil {
		return false
	}
	lock, err := contract.TryLockFile(path)
	if err == nil {
		lock.Unlock()
	}
	return errors.Is(err, contract.ErrLocked)
}

// end forces the virtual machine of a slot off and waits until its process has exited.
func (u *uninstaller) end(ctx context.Context, dir contract.SlotDir) error {
	if !locked(dir.LockPath()) {
		return nil
	}
	killing, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := contract.NewClient(dir).Kill(killing); err != nil {
		fmt.Fprintf(u.out, "The virtual machine in %s does not respond: %v\n", dir, err)
	}
	if err := u.waitUnlocked(ctx, dir.LockPath()); err != nil {
		return fmt.Errorf("the virtual machine in %s does not stop: %w; reboot the Mac, then uninstall again", dir, err)
	}
	return nil
}

func (u *uninstaller) waitUnlocked(ctx context.Context, path string) error {
	deadline := u.clock.Now().Add(endTimeout)
	for locked(path) {
		if u.clock.Now().After(deadline) {
			return fmt.Errorf("%s: %w", path, contract.ErrLocked)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-u.clock.After(endPoll):
		}
	}
	return nil
}

// remove removes the agent's files and returns the names of other files.
func (u *uninstaller) remove() ([]string, error) {
	entries, err := os.ReadDir(u.stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := caches.New(filepath.Join(u.stateDir, "caches"), caches.NewDisk()).EraseAll(func(...string) {}); err != nil {
		return nil, fmt.Errorf("caches: %w", err)
	}
	var left []string
	for _, entry := range entries {
		if !slices.Contains(ours, entry.Name()) {
			left = append(left, filepath.Join(u.stateDir, entry.Name()))
			continue
		}
		if err := os.RemoveAll(filepath.Join(u.stateDir, entry.Name())); err != nil {
			return nil, err
		}
	}
	if len(left) == 0 {
		// The parent folder may belong to root; then the empty state directory remains.
		if err := os.Remove(u.stateDir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}
	return left, nil
}

func (u *uninstaller) printRemaining(left []string) {
	fmt.Fprintf(u.out, "Removed the agent's jobs, keys, images and virtual machines from %s.\n", u.stateDir)
	if len(left) > 0 {
		fmt.Fprintf(u.out, "Kept files that do not belong to the agent: %s\n", strings.Join(left, ", "))
	}
	if rest := u.jobs.remainingSteps(); len(rest) > 0 {
		fmt.Fprintln(u.out, "Remaining tasks of an administrator on this Mac:")
		for _, line := range rest {
			fmt.Fprintln(u.out, "  "+line)
		}
	}
	fmt.Fprintf(u.out, "Remaining tasks of an administrator in the cluster:\n  kubectl delete macnode %[1]s   # refused while it is leased\n  kubectl delete node %[1]s\n", u.nodeName())
}

// nodeName returns the name of the Mac for messages, or NAME if it never joined.
func (u *uninstaller) nodeName() string { return cmp.Or(u.node, "NAME") }
