// Package caches keeps the directories of a lease that its instances share. They outlive the
// instances, and end with the lease.
//
// Guests control the content of a cache. The agent reads no file of it, follows no symbolic link in
// it, and bounds its size.
package caches

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/faults"
)

// dataName is the shared directory in the directory of a cache. On a Mac it exists only while the
// volume of the cache is mounted, so a guest never writes to the disk of the Mac instead.
const dataName = "data"

// Disk stores caches. Paths are those of their directories, whose parent exists.
type Disk interface {
	// Open makes the cache available in its directory, for at most size bytes. It creates a missing
	// cache. It returns the reason for which it emptied the cache, or an empty string.
	Open(path string, size int64) (emptied string, err error)
	// Erase removes the cache and its directory. No guest uses it.
	Erase(path string) error
	// Allocated returns the storage of the Mac's disk that the cache takes, in bytes; 0 without a
	// cache.
	Allocated(path string) (int64, error)
	// Attached returns the paths of the caches below dir that the system has attached, whether
	// their files exist or not.
	Attached(dir string) ([]string, error)
}

// Manager manages the caches of a Mac.
type Manager struct {
	// dir has a directory for each lease, named by its UID.
	dir  string
	disk Disk
	// mu serializes changes: two instances may start on one cache.
	mu sync.Mutex
}

// New returns a manager of the caches in dir.
func New(dir string, disk Disk) *Manager { return &Manager{dir: dir, disk: disk} }

// Open makes the caches of an instance available and returns what its runner shares with the guest.
// It first erases the caches of other leases. It passes the caches that it has emptied to
// onEmptied, with the reason. The Mac is leased.
func (m *Manager) Open(macNode *rackv1alpha1.MacNode, wanted []instancev1alpha1.InstanceCache, onEmptied func(name, reason string)) ([]contract.Share, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lease := macNode.Status.LeaseRef.UID
	stored, err := m.stored()
	if err != nil {
		return nil, err
	}
	delete(stored, string(lease))
	if err := m.erase(stored, func(...string) {}); err != nil {
		return nil, fmt.Errorf("caches of an earlier lease: %w", err)
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	dir, err := m.leaseDir(lease)
	if err != nil {
		return nil, err
	}
	var shares []contract.Share
	for _, want := range wanted {
		i := slices.IndexFunc(macNode.Status.Caches, func(c rackv1alpha1.LeaseCache) bool { return c.Name == want.Name })
		if i < 0 || !isName(want.Name) {
			return nil, fmt.Errorf("lease %q has no cache %q on MacNode %q", macNode.Status.LeaseRef.Name, want.Name, macNode.Name)
		}
		path := filepath.Join(dir, want.Name)
		emptied, err := m.disk.Open(path, macNode.Status.Caches[i].SizeLimit.Int64())
		if err != nil {
			return nil, fmt.Errorf("cache %q: %w", want.Name, err)
		}
		if emptied != "" {
			onEmptied(want.Name, emptied)
		}
		faults.At("cache: open")
		data := filepath.Join(path, dataName)
		if err := os.Mkdir(data, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("cache %q: %w", want.Name, err)
		}
		shares = append(shares, contract.Share{Name: want.Name, Path: data, ReadOnly: want.ReadOnly})
	}
	return shares, nil
}

// leaseDir creates the directory of a lease.
func (m *Manager) leaseDir(lease types.UID) (string, error) {
	if !isName(string(lease)) {
		return "", fmt.Errorf("invalid UID %q of the lease", lease)
	}
	dir := filepath.Join(m.dir, string(lease))
	return dir, os.MkdirAll(dir, 0o700)
}

// isName reports whether name is that of a directory entry.
func isName(name string) bool {
	return name != "." && filepath.IsLocal(name) && filepath.Base(name) == name
}

// Reserved returns the storage that the caches of the Mac's lease may still take, in bytes.
func (m *Manager) Reserved(macNode *rackv1alpha1.MacNode) int64 {
	lease := macNode.Status.LeaseRef
	if lease == nil {
		return 0
	}
	var reserved int64
	for _, cache := range macNode.Status.Caches {
		size := cache.SizeLimit.Int64()
		allocated, err := m.disk.Allocated(filepath.Join(m.dir, string(lease.UID), cache.Name))
		if err != nil {
			klog.ErrorS(err, "Failed to read the size of a cache", "cache", cache.Name)
			allocated = 0
		}
		reserved += max(0, size-allocated)
	}
	return reserved
}

// EraseAll erases the caches of all leases. It passes the name of each cache to erasing before it
// erases the cache, continues after an error, and returns all errors. No virtual machine runs.
func (m *Manager) EraseAll(erasing func(names ...string)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	stored, err := m.stored()
	if err != nil {
		return err
	}
	attached, err := m.disk.Attached(m.dir)
	for _, path := range attached {
		lease := filepath.Base(filepath.Dir(path))
		stored[lease] = append(stored[lease], filepath.Base(path))
	}
	return errors.Join(err, m.erase(stored, erasing))
}

// stored returns the names of the caches on the disk, by the UID of their lease.
func (m *Manager) stored() (map[string][]string, error) {
	leases, err := entries(m.dir)
	if err != nil {
		return nil, err
	}
	stored := map[string][]string{}
	for _, lease := range leases {
		caches, err := entries(filepath.Join(m.dir, lease.Name()))
		if err != nil {
			return nil, err
		}
		stored[lease.Name()] = nil
		for _, cache := range caches {
			stored[lease.Name()] = append(stored[lease.Name()], cacheName(cache.Name()))
		}
	}
	return stored, nil
}

// erase erases caches, which it gets by the UID of their lease.
func (m *Manager) erase(caches map[string][]string, erasing func(names ...string)) error {
	var errs []error
	for _, lease := range slices.Sorted(maps.Keys(caches)) {
		slices.Sort(caches[lease])
		for _, name := range slices.Compact(caches[lease]) {
			errs = append(errs, m.eraseCache(lease, name, erasing))
		}
		faults.At("caches: removed one")
		if err := os.Remove(filepath.Join(m.dir, lease)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		errs = append(errs, contract.SyncDir(m.dir))
	}
	return errors.Join(errs...)
}

// eraseCache erases a cache of a lease.
func (m *Manager) eraseCache(lease, name string, erasing func(names ...string)) error {
	path := filepath.Join(m.dir, lease, name)
	allocated, err := m.disk.Allocated(path)
	if err != nil {
		klog.ErrorS(err, "Failed to read the size of a cache", "cache", name)
	}
	erasing(fmt.Sprintf("caches/%s/%s (%d bytes)", lease, name, allocated))
	if err := m.disk.Erase(path); err != nil {
		return err
	}
	klog.InfoS("Cache erased", "lease", lease, "cache", name, "bytes", allocated)
	return nil
}

// Leftovers lists the caches on the disk, and those that are attached. It does not look into them.
func (m *Manager) Leftovers() ([]string, error) {
	leases, err := entries(m.dir)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, lease := range leases {
		caches, err := entries(filepath.Join(m.dir, lease.Name()))
		if err != nil {
			return nil, err
		}
		left = append(left, "caches/"+lease.Name())
		for _, cache := range caches {
			left = append(left, "caches/"+lease.Name()+"/"+cache.Name())
		}
	}
	attached, err := m.disk.Attached(m.dir)
	if err != nil {
		return nil, err
	}
	for _, path := range attached {
		left = append(left, fmt.Sprintf("caches/%s/%s (attached)", filepath.Base(filepath.Dir(path)), filepath.Base(path)))
	}
	return left, nil
}

// entries lists a directory. A missing one is empty, and so is one that is a file.
func entries(dir string) ([]fs.DirEntry, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return os.ReadDir(dir)
}
