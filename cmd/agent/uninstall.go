package main

import (
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

	"macrack.io/macrack/pkg/agent/identity"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// askTimeout is how long the cluster may take to say whose the Mac is.
	askTimeout = 20 * time.Second
	// endTimeout is how long a process may take to end.
	endTimeout = time.Minute
	endPoll    = 200 * time.Millisecond
)

// ours are the names of what an agent, and its package, keep in the state directory. Nothing else is removed.
var ours = []string{"slots", "images", "state.json", "state.json.garbled", "reboots.json", kubeconfigName, certDirName, "agent.lock", ".metadata_never_index"}

// jobs are the launchd jobs of this Mac; other systems have none.
type jobs interface {
	// stop ends a job, and removes it from the login session and for good.
	stop(ctx context.Context, label string) error
	// labels are the agent's, and those of the slots.
	agent() []string
	slots() []string
	// leftFor says what is left for an administrator of the Mac.
	leftFor() []string
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
		Short: "Remove the agent, its keys and all it keeps from this Mac",
		Long: `Uninstall removes the agent's jobs, its certificates and keys, the images, and what is left of virtual machines. It refuses while a lease
has the Mac, or a virtual machine runs. With --force it goes on: the virtual machines are ended as by pulling the plug, their disks are
removed, and the lease keeps the Mac, which is Offline, until an administrator ends that (docs/runbooks.md, "Lost Mac").`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if u.stateDir, err = filepath.Abs(u.stateDir); err != nil {
				return err
			}
			u.out = cmd.OutOrStdout()
			_, u.node, err = identity.Read(filepath.Join(u.stateDir, certDirName))
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
	cmd.Flags().BoolVar(&u.force, "force", u.force, "Go on although a lease has the Mac, a virtual machine runs, or the cluster does not answer.")
	return cmd
}

func (u *uninstaller) run(ctx context.Context) error {
	if err := u.mayGo(ctx); err != nil {
		return err
	}
	for _, label := range u.jobs.agent() {
		if err := u.jobs.stop(ctx, label); err != nil {
			return err
		}
	}
	if err := u.waitUnlocked(ctx, filepath.Join(u.stateDir, "agent.lock")); err != nil {
		return fmt.Errorf("the agent runs: stop it, then uninstall again: %w", err)
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
	u.sayWhatIsLeft(left)
	return nil
}

// mayGo refuses while the Mac is a tenant's, or nobody can tell whether it is.
func (u *uninstaller) mayGo(ctx context.Context) error {
	var why []string
	if u.node != "" {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		mac, err := u.mac(asking)
		switch {
		case apierrors.IsNotFound(err): // an administrator has taken it out of the fleet
		case err != nil:
			why = append(why, fmt.Sprintf("the cluster does not say whether a lease has Mac %s: %v", u.node, err))
		case mac.Status.LeaseRef != nil:
			lease := mac.Status.LeaseRef
			until := ""
			if at := mac.Status.EarliestReleaseAt; at != nil {
				until = fmt.Sprintf(" until %s at least", at.UTC().Format(time.RFC3339))
			}
			why = append(why, fmt.Sprintf("lease %s/%s has Mac %s%s", lease.Namespace, lease.Name, u.node, until))
		}
	}
	if running := u.running(); len(running) > 0 {
		why = append(why, fmt.Sprintf("%d virtual machines run here", len(running)))
	}
	if len(why) == 0 {
		return nil
	}
	reasons := strings.Join(why, "; ")
	if !u.force {
		return fmt.Errorf("refused: %s. Take the Mac out of the pool (kubectl patch macnode NAME --type=merge -p '{\"spec\":{\"maintenance\":true}}'), wait until it is free, and uninstall then. "+
			"With --force its virtual machines end at once, their disks are lost, and the lease keeps a Mac that is Offline", reasons)
	}
	fmt.Fprintf(u.out, "Forced although %s.\n", reasons)
	return nil
}

func (u *uninstaller) slot(n int) contract.SlotDir {
	return contract.SlotDir(filepath.Join(u.stateDir, "slots", strconv.Itoa(n)))
}

// running are the slots that a runner has.
func (u *uninstaller) running() []int {
	var running []int
	for slot := range rules.MaxVMsPerMac {
		if locked(u.slot(slot).LockPath()) {
			running = append(running, slot)
		}
	}
	return running
}

// locked does not make the file.
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

// end pulls the plug of a slot's virtual machine, and waits until its process is gone.
func (u *uninstaller) end(ctx context.Context, dir contract.SlotDir) error {
	if !locked(dir.LockPath()) {
		return nil
	}
	killing, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := contract.NewClient(dir).Kill(killing); err != nil {
		fmt.Fprintf(u.out, "The virtual machine in %s does not answer: %v\n", dir, err)
	}
	if err := u.waitUnlocked(ctx, dir.LockPath()); err != nil {
		return fmt.Errorf("the virtual machine in %s does not end: %w; reboot the Mac, then uninstall again", dir, err)
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

// remove removes what is the agent's, and returns the names of what is not.
func (u *uninstaller) remove() ([]string, error) {
	entries, err := os.ReadDir(u.stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
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
		// The folder that it is in may belong to root, which leaves it, empty.
		if err := os.Remove(u.stateDir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}
	return left, nil
}

func (u *uninstaller) sayWhatIsLeft(left []string) {
	fmt.Fprintf(u.out, "The agent's jobs, keys, images and virtual machines are gone from %s.\n", u.stateDir)
	if len(left) > 0 {
		fmt.Fprintf(u.out, "Not the agent's, and left: %s\n", strings.Join(left, ", "))
	}
	if rest := u.jobs.leftFor(); len(rest) > 0 {
		fmt.Fprintln(u.out, "Left to do on this Mac, by an administrator:")
		for _, line := range rest {
			fmt.Fprintln(u.out, "  "+line)
		}
	}
	name := u.node
	if name == "" {
		name = "NAME"
	}
	fmt.Fprintf(u.out, "Left to do in the cluster, by an administrator:\n  kubectl delete macnode %[1]s   # refused while a lease has it\n  kubectl delete node %[1]s\n", name)
}
