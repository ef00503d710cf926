package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"macrack.io/macrack/pkg/agent/disk"
)

// NoRoomError means that an image does not fit on the disk. All sizes are in bytes.
type NoRoomError struct {
	Image string
	// Needed is the size of the missing data of the image.
	Needed int64
	// Free is the free storage; Reserved is the part of it that other pulls will use.
	Free, Reserved int64
	// MinimumFree is the storage to keep free.
	MinimumFree int64
	// Caches is the storage that the caches of the lease may still take.
	Caches int64
	// Evictable is the size of the unused images.
	Evictable int64
}

// Error returns the message.
func (e *NoRoomError) Error() string {
	text := fmt.Sprintf("image %s needs %s, and %s must stay free (imageCache.minimumFree), but only %s are free", e.Image, Size(e.Needed), Size(e.MinimumFree), Size(e.Free))
	if e.Reserved > 0 {
		text += fmt.Sprintf(", and other pulls need %s of that", Size(e.Reserved))
	}
	if e.Caches > 0 {
		text += fmt.Sprintf(", and the caches of the lease may take %s of that", Size(e.Caches))
	}
	return text + fmt.Sprintf("; unused images occupy %s; stop instances of other images, remove files from the Mac, or use a Mac with more storage", Size(e.Evictable))
}

// candidate is an image that can be evicted.
type candidate struct {
	Cached
	unfinished bool
	unlock     func()
}

// makeRoom reserves storage for a pull. If there is too little, it evicts unused images, the least
// recently used first. If that would not suffice, it evicts nothing and returns a *NoRoomError.
// s.mu is held.
func (s *OCI) makeRoom(image Image, p *pull, needed int64, needs Needs) error {
	free, err := s.freeBytes()
	if err != nil {
		return err
	}
	var reserved int64
	for _, other := range s.pulls {
		if other != p {
			reserved += other.missing.Load()
		}
	}
	short := func() int64 { return needed + needs.MinimumFree + needs.Caches + reserved - free }
	if short() > 0 {
		candidates, err := s.candidates(image.Name, needs)
		defer func() {
			for _, c := range candidates {
				c.unlock()
			}
		}()
		if err != nil {
			return err
		}
		var evictable int64
		for _, c := range candidates {
			evictable += c.Bytes
		}
		refusal := &NoRoomError{Image: image.Name, Needed: needed, Free: free, Reserved: reserved, MinimumFree: needs.MinimumFree, Caches: needs.Caches, Evictable: evictable}
		if short() > evictable {
			return refusal
		}
		for _, c := range candidates {
			if short() <= 0 {
				break
			}
			if err := s.evict(c, image.Name, needs); err != nil {
				return err
			}
			evictable -= c.Bytes
			// An evicted image may have shared blocks with other files.
			if free, err = s.freeBytes(); err != nil {
				return err
			}
		}
		if short() > 0 {
			refusal.Free, refusal.Evictable = free, evictable
			return refusal
		}
	}
	p.missing.Store(needed)
	return nil
}

func (s *OCI) evict(c candidate, wanted string, needs Needs) error {
	if err := remove(s.Dir, c.Name); err != nil {
		return fmt.Errorf("evict image %s: %w", c.Name, err)
	}
	why := "unused since " + c.LastUsedAt.UTC().Format(time.RFC3339)
	if c.unfinished {
		why = "a partial pull that no instance waits for"
	}
	message := fmt.Sprintf("Removed image %s (%s), %s, to make room for image %s", c.Name, Size(c.Bytes), why, wanted)
	klog.InfoS("Image evicted", "image", c.Name, "bytes", c.Bytes, "lastUsedAt", c.LastUsedAt, "for", wanted)
	needs.emit(EventEvicted, message)
	return nil
}

func (n Needs) emit(reason, message string) {
	if n.OnEvent != nil {
		n.OnEvent(Event{Reason: reason, Message: message})
	}
}

// candidates returns the images that can be evicted, locked and in the order of eviction. s.mu is
// held, so that no pull starts meanwhile.
func (s *OCI) candidates(wanted string, needs Needs) ([]candidate, error) {
	kept := []string{wanted}
	if needs.Keep != nil {
		names, err := needs.Keep()
		if err != nil {
			return nil, err
		}
		kept = append(kept, names...)
	}
	held, err := s.List()
	if err != nil {
		return nil, err
	}
	unfinished, err := s.Unfinished()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(held, func(a, b Cached) int { return a.LastUsedAt.Compare(b.LastUsedAt) })
	var all []candidate
	for i, c := range append(unfinished, held...) {
		if slices.Contains(kept, c.Name) {
			continue
		}
		if unlock, ok := s.tryLock(c.Name); ok {
			all = append(all, candidate{Cached: c, unfinished: i < len(unfinished), unlock: unlock})
		}
	}
	return all, nil
}

// freeBytes returns the free storage of the disk.
func (s *OCI) freeBytes() (int64, error) {
	measure := s.free
	if measure == nil {
		measure = disk.Free
	}
	dir := s.Dir
	for {
		free, err := measure(dir)
		if parent := filepath.Dir(dir); errors.Is(err, os.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		return free, err
	}
}
