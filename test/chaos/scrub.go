package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scrubs ends the agent at each place of a scrub, and checks what is left of the
// tenant, and that the Mac can be leased again.
func scrubs(ctx context.Context, r *run) error {
	all := []string{"", "scrub: begins", "caches: removed one", "scrub: erased", "scrub: report: before", "scrub: report: after", "wipe: spec gone", "wipe: removed disk", "write state.json: renamed"}
	if err := r.clear(ctx); err != nil {
		return err
	}
	for n, place := range all {
		for m, mode := range []string{endAgent, endPower} {
			if place == "" && mode == endPower || r.Scrubs != 0 && n*2+m != 3 {
				continue
			}
			r.fault(fmt.Sprintf("%s at %q while the Mac is scrubbed", mode, place), func() error { return r.scrub(ctx, place, mode) })
		}
	}
	return r.ledger(ctx)
}

func (r *run) scrub(ctx context.Context, place, mode string) error {
	if _, err := r.start(ctx); err != nil {
		return err
	}
	// Plant leftovers of interrupted acts, and unknown files.
	stray := filepath.Join(r.mac.state(), "slots", "copy-of-a-disk")
	if err := os.WriteFile(stray, []byte("secret"), 0o600); err != nil {
		return err
	}
	cache, err := r.cache(ctx)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(cache, "secret"), []byte("of the tenant"), 0o600); err != nil {
		return err
	}
	if place != "" {
		if err := r.mac.set("arm", place); err != nil {
			return err
		}
		defer r.mac.disarm()
	}
	old := r.lease
	leases := r.admin.RackV1alpha1().MacNodeLeases(tenant)
	if err := leases.Delete(ctx, old, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if place == "" {
			ended <- nil
			return
		}
		ended <- wait(over, func() error {
			pid, hit := r.mac.hit()
			if !hit {
				return fmt.Errorf("no process reaches %q", place)
			}
			if err := r.end(pid, mode); err != nil {
				return err
			}
			r.mac.disarm()
			return r.mac.agent.Start()
		})
	}()
	if err := wait(ctx, func() error {
		lease, err := leases.Get(ctx, old, metav1.GetOptions{})
		if err == nil && lease.Status.Phase != rackv1alpha1.MacNodeLeaseHeld {
			err = fmt.Errorf("lease %s is %s", old, lease.Status.Phase)
		}
		return err
	}); err != nil {
		return err
	}
	r.tb.Advance(25 * time.Hour)
	if err := r.mac.set("clock", r.tb.Clock.Offset().String()); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return err
	}
	var available error
	if err := wait(ctx, func() error {
		node, err := r.node(ctx)
		if err == nil && node.Status.LeaseRef != nil {
			err = fmt.Errorf("the Mac is %s: quarantine %+v, scrub %+v", node.Status.Phase, node.Status.Quarantine, node.Status.Scrub)
		} else if err == nil && node.Status.Phase != rackv1alpha1.MacNodeAvailable {
			err = fmt.Errorf("the Mac is %s: quarantine %+v", node.Status.Phase, node.Status.Quarantine)
		}
		// From the first moment at which another tenant can lease the Mac, no data is left.
		if err == nil {
			if left := append(r.mac.leftovers(), r.mac.files("caches")...); len(left) > 0 {
				available = fmt.Errorf("the Mac is Available, and has %v", left)
			}
		}
		return err
	}); err != nil {
		return err
	}
	node, err := r.node(ctx)
	if err != nil {
		return err
	}
	report := node.Status.Scrub
	if report == nil || len(report.Remaining) > 0 {
		available = errors.Join(available, fmt.Errorf("the Mac is Available after the scrub %+v", report))
		report = &rackv1alpha1.ScrubReport{}
	}
	for _, name := range []string{"copy-of-a-disk", "disk/disk.img", "/" + cacheName + " ("} {
		if !strings.Contains(strings.Join(report.Removed, "\n"), name) {
			available = errors.Join(available, fmt.Errorf("the report of the scrub does not have %q: %q", name, report.Removed))
		}
	}
	return errors.Join(available, r.bind(ctx))
}

func waitFor(ctx context.Context, limit time.Duration, is func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := is()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(poll)
	}
}
