package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"k8s.io/klog/v2"
	"oras.land/oras-go/v2/registry/remote/credentials"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/images/ociclient"
	"macrack.io/macrack/pkg/images/verify"
)

// pull pulls an image. The caller holds the image's lock.
func (s *OCI) pull(ctx context.Context, image Image, pinned digest.Digest, needs Needs) (Cached, error) {
	began := s.Clock.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, end := s.begin(image.Name, cancel)
	defer end()

	client, err := s.client(ctx, image, needs)
	if err != nil {
		return Cached{}, err
	}
	layout, hardwareModel, err := verify.Layout(ctx, client, pinned)
	if err != nil {
		return Cached{}, err
	}
	cached := Cached{Name: image.Name, Digest: image.Digest, Private: image.Private, HardwareModel: hardwareModel}
	if err := verify.Bootable(layout, cmp.Or(image.HardwareModel, hardwareModel)); err != nil {
		return Cached{}, err
	}
	if layout.DiskSize > image.DiskSize {
		return Cached{}, fmt.Errorf("the image's disk has %d bytes, spec.diskSize of MacOSImage %s is %d", layout.DiskSize, image.Name, image.DiskSize)
	}
	cached.DiskSize, cached.CPUMin, cached.MemoryMin = layout.DiskSize, layout.CPUMin, layout.MemoryMin
	cached.MachineID = layout.MachineID

	j, err := s.resume(image, layout)
	if err != nil {
		return Cached{}, err
	}
	w := &work{store: s, client: client, pull: p, dir: filepath.Join(s.Dir, image.Name), chunks: layout.Chunks(), done: map[int]bool{}, journal: j}
	needed := w.plan()
	s.mu.Lock()
	err = s.makeRoom(image, p, needed, needs)
	s.mu.Unlock()
	if err != nil {
		if len(j.Chunks) == 0 {
			err = errors.Join(err, remove(s.Dir, image.Name))
		}
		return Cached{}, err
	}
	klog.InfoS("Pulling image", "image", image.Name, "reference", image.Reference, "digest", image.Digest, "bytes", p.total.Load(), "resumedAt", p.done.Load())
	needs.emit(EventPulling, pullingMessage(image, p.progress()))

	resumed := p.done.Load()
	if err := w.run(ctx, layout); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			// Running virtual machines take precedence over a partial pull.
			free, _ := s.freeBytes()
			err = fmt.Errorf("the disk became full during the pull of image %s (%s free); the partial pull is removed: %w", image.Name, Size(free), err)
			return Cached{}, errors.Join(err, remove(s.Dir, image.Name))
		}
		return Cached{}, err
	}
	cached.LastUsedAt = s.Clock.Now()
	if cached.Bytes, err = occupied(w.dir); err != nil {
		return Cached{}, err
	}
	if err := s.writeMetadata(cached); err != nil {
		return Cached{}, err
	}
	if err := os.Remove(filepath.Join(w.dir, journalName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Cached{}, err
	}
	took := s.Clock.Since(began)
	klog.InfoS("Image pulled", "image", image.Name, "took", took, "downloaded", p.done.Load()-resumed, "occupies", cached.Bytes)
	message := fmt.Sprintf("Pulled image %s in %s: %s downloaded, %s on the disk", image.Name, took.Round(time.Millisecond), Size(p.done.Load()-resumed), Size(cached.Bytes))
	if resumed > 0 {
		message += fmt.Sprintf(" (%s reused from an earlier pull)", Size(resumed))
	}
	needs.emit(EventPulled, message)
	return read(s.Dir, image.Name)
}

func pullingMessage(image Image, p Progress) string {
	message := fmt.Sprintf("Pulling image %s (%s) from %s", image.Name, Size(p.Total), image.Reference)
	if p.Done > 0 {
		message += ", resuming at " + p.String()
	}
	return message
}

// client returns a client of the image's registry.
func (s *OCI) client(ctx context.Context, image Image, needs Needs) (*ociclient.Client, error) {
	opts := ociclient.Options{
		Reference: image.Reference, Clock: s.Clock, Transport: s.transport, Stall: s.stall, Wait: s.wait,
		Retrying: func(err error, wait time.Duration) {
			klog.InfoS("Registry failed; retrying", "image", image.Name, "err", err, "wait", wait)
		},
	}
	if needs.Credentials != nil {
		config, err := needs.Credentials(ctx)
		if err != nil {
			return nil, &verify.ReasonError{Reason: imagev1alpha1.ReasonPullSecretUnreadable, Err: err}
		}
		if config != nil {
			store, err := credentials.NewMemoryStoreFromDockerConfig(config)
			if err != nil {
				// The wrapped error could quote the credentials.
				return nil, &verify.ReasonError{Reason: imagev1alpha1.ReasonPullSecretUnreadable,
					Err: errors.New("the credentials are not in the form of kubernetes.io/dockerconfigjson")}
			}
			opts.Credential = credentials.Credential(store)
		}
	}
	return ociclient.New(opts)
}
