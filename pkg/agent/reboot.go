package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/slots"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// maxReboots in rebootWindow: a Mac that needs more has something that no reboot
	// cures, and waits for an administrator.
	maxReboots   = 3
	rebootWindow = 24 * time.Hour

	rebootsFile = "reboots.json"
)

// curable are the causes of a quarantine that a reboot can end: the kernel forgets
// virtual machines it has lost track of, and what ran unseen has ended.
var curable = []string{rackv1alpha1.ReasonKernelQuotaStuck, rackv1alpha1.ReasonScrubAsserted}

// rebootPolicy is what RackConfig says about Macs in quarantine.
type rebootPolicy struct{ whenEmpty atomic.Bool }

func (p *rebootPolicy) set(policy configv1alpha1.RebootPolicy) {
	p.whenEmpty.Store(policy == configv1alpha1.RebootWhenEmpty)
}

// reboot is one that the agent has asked for.
type reboot struct {
	At metav1.Time `json:"at"`
	// Quarantine is when the quarantine began that it was to end.
	Quarantine metav1.Time `json:"quarantine"`
}

// rebootIfItHelps reboots a Mac in quarantine that runs nothing, if the fleet's
// configuration says so and the cause is one that a reboot can end. It is asked
// once the API has the Mac's present state.
func (a *Agent) rebootIfItHelps(ctx context.Context, macNode *rackv1alpha1.MacNode, info host.Info) error {
	q := macNode.Status.Quarantine
	rebooter, can := a.config.Host.(host.Rebooter)
	if !can || !a.reboots.whenEmpty.Load() || q == nil || q.BootID != info.BootID || !slices.Contains(curable, q.Reason) {
		return nil
	}
	// Nothing is put into a slot meanwhile.
	a.starting.Lock()
	defer a.starting.Unlock()
	for _, slot := range a.slots.Statuses() {
		if slot.Phase != slots.Free {
			return nil // a change of the slot's brings us back
		}
	}
	// What has begun to run, and has no slot, is reported first. What waits for its launch may wait.
	all, err := a.instances.List(labels.Everything())
	if err != nil {
		return err
	}
	waiting := int32(0)
	for _, instance := range all {
		if s := instance.Status; s.NodeName == a.config.NodeName && s.StartGrantedAt != nil && s.StartedAt == nil && !rules.InstanceEnded(instance.Status.Phase) {
			waiting++
		}
	}
	if macNode.Status.RunningVMs > waiting {
		return nil
	}
	path := filepath.Join(a.config.StateDir, rebootsFile)
	history, err := readReboots(path)
	if err != nil {
		return err
	}
	now := metav1.NewTime(a.config.Clock.Now())
	if why := refuseReboot(history, q.Since, now); why != "" {
		klog.V(2).InfoS("This Mac is in quarantine and is not rebooted", "reason", q.Reason, "why", why)
		return nil
	}
	// Remembered first: a Mac that dies in between has used the reboot up.
	history = append(history, reboot{At: now, Quarantine: q.Since})
	if err := contract.WriteJSON(path, history[max(0, len(history)-maxReboots):]); err != nil {
		return err
	}
	klog.InfoS("Rebooting this Mac: it is in quarantine and runs nothing", "reason", q.Reason, "since", q.Since)
	if err := rebooter.Reboot(ctx); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	a.queue.Add(key{kind: macNodeKey})
	return nil
}

// refuseReboot bounds reboots: one for each quarantine, and maxReboots in
// rebootWindow. What was in the future was before the clock was set back.
func refuseReboot(history []reboot, since, now metav1.Time) string {
	recent := 0
	for _, r := range history {
		if r.Quarantine.Unix() == since.Unix() {
			return "a reboot did not end it; an administrator is to look at it"
		}
		if now.Sub(r.At.Time) < rebootWindow {
			recent++
		}
	}
	if recent >= maxReboots {
		return fmt.Sprintf("it was rebooted %d times within %s; an administrator is to look at it", recent, rebootWindow)
	}
	return ""
}

// readReboots fails on a garbled file: without the history there is no bound.
func readReboots(path string) ([]reboot, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var history []reboot
	if err := json.Unmarshal(data, &history); err != nil {
		return nil, fmt.Errorf("the Mac is not rebooted, as %s cannot be read; remove it once you have looked: %w", path, err)
	}
	return history, nil
}
