package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/disk"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/images/verify"
	"macrack.io/macrack/pkg/vm/contract"
)

// OCI is a store that pulls images from OCI registries.
type OCI struct {
	// Dir has a directory for each image. Only one process at a time may pull into it.
	Dir   string
	Clock clock.WithTicker
	// Parallel is the number of parallel blob downloads. The default is 4.
	Parallel int

	// transport, stall, wait and the functions are for tests.
	transport http.RoundTripper
	stall     time.Duration
	wait      time.Duration
	free      func(path string) (int64, error)
	open      func(path string) (file, error)

	mu    sync.Mutex
	locks map[string]chan struct{} // by image; the holder of the token may change the image
	pulls map[string]*pull         // in progress
}

// file is the interface of a file that a pull writes.
type file interface {
	WriteAt(p []byte, offset int64) (int, error)
	// Zero writes zeros to a range of the file.
	Zero(offset, size int64) error
	Truncate(size int64) error
	Sync() error
	Close() error
}

type osFile struct{ *os.File }

func (f osFile) Zero(offset, size int64) error { return disk.Zero(f.File, offset, size) }

func openFile(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	return osFile{f}, err
}

// token returns the token of an image. s.mu is held.
func (s *OCI) token(name string) chan struct{} {
	if s.locks == nil {
		s.locks = map[string]chan struct{}{}
	}
	if s.locks[name] == nil {
		s.locks[name] = make(chan struct{}, 1)
	}
	return s.locks[name]
}

// lock waits for the image's token and takes it.
func (s *OCI) lock(ctx context.Context, name string) (unlock func(), err error) {
	s.mu.Lock()
	token := s.token(name)
	s.mu.Unlock()
	select {
	case token <- struct{}{}:
		return func() { <-token }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// tryLock is like lock but does not wait. s.mu is held.
func (s *OCI) tryLock(name string) (unlock func(), ok bool) {
	token := s.token(name)
	select {
	case token <- struct{}{}:
		return func() { <-token }, true
	default:
		return nil, false
	}
}

// Check implements Store.
func (s *OCI) Check(ctx context.Context, image Image, needs Needs) error {
	spec := &imagev1alpha1.MacOSImageSpec{
		Source:   imagev1alpha1.ImageSource{Reference: image.Reference, Digest: image.Digest},
		DiskSize: scalar.NewQuantity(image.DiskSize, resource.BinarySI), HardwareModel: image.HardwareModel,
	}
	if err := verify.Source(spec.Source); err != nil {
		return err
	}
	client, err := s.client(ctx, image, needs)
	if err != nil {
		return err
	}
	return verify.Image(ctx, client, spec)
}

// Ensure implements Store. If a pull of the image is in progress, it waits for that.
func (s *OCI) Ensure(ctx context.Context, image Image, needs Needs) (Cached, error) {
	if err := checkName(image.Name); err != nil {
		return Cached{}, err
	}
	pinned, err := digest.Parse(image.Digest)
	if err != nil || pinned.Algorithm() != digest.SHA256 {
		return Cached{}, fmt.Errorf("invalid digest %q of image %s; use sha256: and 64 lowercase hexadecimal digits", image.Digest, image.Name)
	}
	unlock, err := s.lock(ctx, image.Name)
	if err != nil {
		return Cached{}, err
	}
	defer unlock()
	held, err := read(s.Dir, image.Name)
	switch {
	case err == nil && held.Digest == image.Digest:
		held.LastUsedAt = s.Clock.Now()
		return held, s.writeMetadata(held)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Cached{}, err
	}
	return s.pull(ctx, image, pinned, needs)
}

func (s *OCI) writeMetadata(c Cached) error {
	return contract.WriteJSON(filepath.Join(s.Dir, c.Name, metadataName), c)
}

// List implements Store.
func (s *OCI) List() ([]Cached, error) { return list(s.Dir) }

// Unfinished implements Store.
func (s *OCI) Unfinished() ([]Cached, error) { return unfinished(s.Dir) }

// Progress implements Store.
func (s *OCI) Progress(name string) (Progress, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pulls[name]
	if p == nil {
		return Progress{}, false
	}
	return p.progress(), true
}

// errRemoved is the cause of a pull that is canceled by Remove.
var errRemoved = errors.New("the image is being removed")

// Remove implements Store.
func (s *OCI) Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	s.mu.Lock()
	if p := s.pulls[name]; p != nil {
		p.cancel(errRemoved)
	}
	s.mu.Unlock()
	unlock, err := s.lock(context.Background(), name)
	if err != nil {
		return err
	}
	defer unlock()
	return remove(s.Dir, name)
}

// pull is a pull in progress.
type pull struct {
	cancel context.CancelCauseFunc
	// total and done are bytes to download.
	total, done atomic.Int64
	// missing is the upper bound of the bytes still to be written to the disk.
	missing atomic.Int64
}

func (p *pull) progress() Progress {
	total := p.total.Load()
	return Progress{Done: min(p.done.Load(), total), Total: total}
}

// begin registers a pull. The caller must call end afterwards.
func (s *OCI) begin(name string, cancel context.CancelCauseFunc) (p *pull, end func()) {
	p = &pull{cancel: cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls == nil {
		s.pulls = map[string]*pull{}
	}
	s.pulls[name] = p
	return p, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pulls, name)
	}
}
