package instance

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/agent/environment"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/objects"
	"macrack.io/macrack/pkg/agent/teardown"
	"macrack.io/macrack/pkg/apiclient"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

// reasonCacheEmptied is the reason of the Event of a cache that exceeded its limits.
const reasonCacheEmptied = "CacheEmptied"

// launch places the virtual machine in a slot and starts it.
func (s *starter) launch(instance *instancev1alpha1.MacOSInstance, network contract.Network, class *instancev1alpha1.InstanceClass, image *imagev1alpha1.MacOSImage, cached images.Cached) error {
	s.PlacementLock.RLock()
	defer s.PlacementLock.RUnlock()
	shares, err := s.openCaches(instance)
	if err != nil {
		return err
	}
	resources := class.Spec.Resources
	spec := &contract.Spec{
		InstanceUID: string(instance.UID), Namespace: instance.Namespace, Name: instance.Name,
		MachineID: instance.Status.MachineID, MACAddress: instance.Status.MACAddress,
		CPU: int(resources.CPU.Int64()), MemoryBytes: resources.Memory.Int64(),
		HardwareModel:     cmp.Or(image.Spec.HardwareModel, cached.HardwareModel),
		SSHAuthorizedKeys: slices.Clone(instance.Spec.SSHAuthorizedKeys),
		StartupScript:     instance.Spec.StartupScript,
		Environment:       environment.Wanted(instance),
		Synchronization:   contract.Synchronization(class.Spec.Synchronization),
		Network:           network,
		Shares:            shares,
	}
	if display := class.Spec.Display; display != nil {
		spec.Display = &contract.Display{Width: display.Width, Height: display.Height, PixelsPerInch: display.PixelsPerInch}
	}
	if err := s.Slots.Prepare(spec, func(dir contract.SlotDir) error {
		return clone(cached, dir, resources.Storage.Int64())
	}); err != nil {
		return err
	}
	return s.Slots.Launch(spec.InstanceUID)
}

// openCaches makes the caches of the instance available. It returns an error if the Mac does not
// match the instance's lease. The caller holds the placement lock.
func (s *starter) openCaches(instance *instancev1alpha1.MacOSInstance) ([]contract.Share, error) {
	// The release of the Mac may have begun meanwhile. Either the scrub waits for the lock, or the
	// MacNode shows the release.
	macNode, err := s.MacNode.Cached()
	if err != nil {
		return nil, err
	}
	if mismatch := teardown.LeaseMismatch(macNode, instance); mismatch != "" {
		return nil, errors.New(mismatch)
	}
	return s.Caches.Open(macNode, instance.Spec.Caches, func(name, reason string) {
		s.Recorder.Event(objects.InstanceRef(instance), corev1.EventTypeWarning, reasonCacheEmptied,
			apiclient.Message(fmt.Sprintf("Cache %s was emptied: %s", name, reason)))
	})
}

// reopenCaches makes the caches available again for an instance in a slot: a reboot of the Mac
// unmounts them.
func (s *starter) reopenCaches(instance *instancev1alpha1.MacOSInstance) error {
	if len(instance.Spec.Caches) == 0 {
		return nil
	}
	_, err := s.openCaches(instance)
	return err
}

func clone(image images.Cached, dir contract.SlotDir, size int64) error {
	if _, err := disk.Clone(image.Disk, dir.DiskPath(), size); err != nil {
		return err
	}
	_, err := disk.Clone(image.Aux, dir.AuxPath(), 0)
	return err
}

// newMACAddress returns a random locally administered unicast address.
func newMACAddress() string {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)        // never fails
	mac[0] = mac[0]&^0b01 | 0b10 // unicast, locally administered
	return mac.String()
}
