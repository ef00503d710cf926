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
	// cache, and an open one stays as it is.
	Open(path string, size int64) error
	// Erase removes the cache and its directory. No guest uses it.
	Erase(path string) error
	// Allocated returns the storage of the Mac's disk that the cache takes, in bytes; 0 without a
	// cache.
	Allocated(path string) (int64, error)
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
// It first erases the caches of other leases. The Mac is leased.
func (m *Manager) Open(macNode *rackv1alpha1.MacNode, wanted []instancev1alpha1.InstanceCache) ([]contract.Share, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lease := macNode.Status.LeaseRef.UID
	if err := m.erase(func(uid string) bool { return uid != string(lease) }, func(...string) {}); err != nil {
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
		if err := m.disk.Open(path, macNode.Status.Caches[i].SizeLimit.Int64()); err != nil {
			return nil, fmt.Errorf("cache %q: %w", want.Name, err)
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
	return m.erase(func(string) bool { return true }, erasing)
}

// erase erases the caches of the leases that goes selects.
func (m *Manager) erase(goes func(uid string) bool, erasing func(names ...string)) error {
	leases, err := entries(m.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, lease := range leases {
		if !goes(lease.Name()) {
			continue
		}
		dir := filepath.Join(m.dir, lease.Name())
		errs = append(errs, m.eraseLease(dir, erasing))
		faults.At("caches: removed one")
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		errs = append(errs, contract.SyncDir(m.dir))
	}
	return errors.Join(errs...)
}

// eraseLease erases the caches in the directory of a lease.
func (m *Manager) eraseLease(dir string, erasing func(names ...string)) error {
	caches, err := entries(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range cacheNames(caches) {
		path := filepath.Join(dir, name)
		allocated, err := m.disk.Allocated(path)
		if err != nil {
			klog.ErrorS(err, "Failed to read the size of a cache", "cache", name)
		}
		erasing(fmt.Sprintf("caches/%s/%s (%d bytes)", filepath.Base(dir), name, allocated))
		errs = append(errs, m.disk.Erase(path))
		klog.InfoS("Cache erased", "lease", filepath.Base(dir), "cache", name, "bytes", allocated)
	}
	return errors.Join(errs...)
}

// Leftovers lists the caches on the disk. It does not look into them.
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

// cacheNames returns the names of the caches of which a directory or the image of a volume exists.
func cacheNames(entries []fs.DirEntry) []string {
	var names []string
	for _, entry := range entries {
		names = append(names, cacheName(entry.Name()))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
