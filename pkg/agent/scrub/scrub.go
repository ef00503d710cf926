// Package scrub erases the files of a tenant when its lease ends, and lists what is left.
package scrub

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/caches"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/agent/state"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/faults"
)

// Config configures a Scrubber.
type Config struct {
	Slots     *slots.Manager
	Caches    *caches.Manager
	Images    images.Store
	Instances *objects.Instances
	State     *state.File
	Clock     clock.PassiveClock
	// PlacementLock is read-locked while a VM is placed in a slot, and write-locked during a scrub
	// or a reboot.
	PlacementLock *sync.RWMutex
}

// Scrubber scrubs the Mac.
type Scrubber struct{ Config }

// New returns a Scrubber.
func New(config Config) *Scrubber { return &Scrubber{config} }

// Scrub removes the remaining files of the tenant once the lease is being released and no virtual
// machine is left. It returns nil if the scrub is not due yet.
func (s *Scrubber) Scrub(macNode *rackv1alpha1.MacNode) (*rackv1alpha1.ScrubReport, error) {
	lease := macNode.Status.LeaseRef
	if macNode.Status.ReleasingSince == nil || lease == nil {
		return nil, nil
	}
	if done := macNode.Status.Scrub; done != nil && done.LeaseUID == lease.UID && len(done.Remaining) == 0 {
		return nil, nil
	}
	s.PlacementLock.Lock()
	defer s.PlacementLock.Unlock()
	for _, slot := range s.Slots.Statuses() {
		if slot.Phase != slots.Free {
			return nil, nil // a change of the slot queues it again
		}
	}
	here, err := s.Instances.InNamespace(lease.Namespace)
	if err != nil {
		return nil, err
	}
	for _, instance := range here {
		if !rules.InstanceEnded(instance.Status.Phase) {
			return nil, nil // its end is reported first
		}
	}
	faults.At("scrub: begins")
	if err := s.Slots.EraseFree(); err != nil {
		klog.ErrorS(err, "Failed to remove all files in scrub")
	}
	if err := s.Caches.EraseAll(s.State.Remember); err != nil {
		klog.ErrorS(err, "Failed to erase all caches in scrub")
	}
	faults.At("scrub: erased")
	remaining, err := s.Slots.Leftovers()
	if err != nil {
		return nil, err
	}
	caches, err := s.Caches.Leftovers()
	if err != nil {
		return nil, err
	}
	remaining = append(remaining, caches...)
	images, err := s.removePrivateImages()
	if err != nil {
		return nil, err
	}
	remaining = append(remaining, images...)
	if err := s.State.Keep(); err != nil {
		return nil, err
	}
	return &rackv1alpha1.ScrubReport{
		LeaseUID: lease.UID, FinishedAt: objects.Now(s.Clock), Removed: s.State.Get().Report(), Remaining: bounded(remaining),
	}, nil
}

func bounded(list []string) []string {
	if len(list) <= state.MaxErased {
		return list
	}
	return append(slices.Clone(list[:state.MaxErased-1]), fmt.Sprintf("and %d more", len(list)-state.MaxErased+1))
}

// removePrivateImages removes the images that were pulled with the tenant's credentials, partial
// pulls included. It returns those that remain.
func (s *Scrubber) removePrivateImages() ([]string, error) {
	cached, err := s.Images.List()
	if err != nil {
		return nil, err
	}
	unfinished, err := s.Images.Unfinished()
	if err != nil {
		return nil, err
	}
	var left []string
	for _, image := range append(cached, unfinished...) {
		if !image.Private {
			continue
		}
		name := "images/" + image.Name
		s.State.Remember(name)
		if err := s.Images.Remove(image.Name); err != nil {
			left = append(left, name)
			continue
		}
	}
	return left, nil
}
