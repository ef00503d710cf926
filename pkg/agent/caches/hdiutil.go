package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"howett.net/plist"
)

const (
	hdiutil = "/usr/bin/hdiutil"
	// hdiutilTimeout bounds one call of hdiutil.
	hdiutilTimeout = 2 * time.Minute
)

// attachedImages is the relevant part of `hdiutil info -plist`.
type attachedImages struct {
	Images []attachedImage `plist:"images"`
}

type attachedImage struct {
	Path string `plist:"image-path"`
	// Entities are the disk of the image, its partitions and its volumes.
	Entities []systemEntity `plist:"system-entities"`
}

type systemEntity struct {
	Device string `plist:"dev-entry"`
}

// images returns the attached disk images. An image stays attached without a mounted volume, and
// even without its file, which then keeps its storage.
func (v *Volumes) images() ([]attachedImage, error) {
	output, err := v.hdiutil("info", "-plist")
	if err != nil {
		return nil, err
	}
	var info attachedImages
	if _, err := plist.Unmarshal(output, &info); err != nil {
		return nil, fmt.Errorf("hdiutil info: %w", err)
	}
	return info.Images, nil
}

// detach detaches the disk images that are attached.
func (v *Volumes) detach(images ...string) error {
	all, err := v.images()
	if err != nil {
		return err
	}
	for _, attached := range all {
		isOurs := func(image string) bool { return attached.Path == resolved(image) }
		if !slices.ContainsFunc(images, isOurs) || len(attached.Entities) == 0 {
			continue
		}
		whole := slices.MinFunc(attached.Entities, func(a, b systemEntity) int { return len(a.Device) - len(b.Device) })
		if _, err := v.hdiutil("detach", whole.Device, "-force"); err != nil {
			return err
		}
	}
	return nil
}

// Attached implements Disk.
func (v *Volumes) Attached(dir string) ([]string, error) {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no lease has ever had a cache
	}
	images, err := v.images()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, image := range images {
		// hdiutil reports a path without symbolic links.
		if name, ok := strings.CutPrefix(image.Path, resolved(dir)+"/"); ok {
			paths = append(paths, filepath.Join(dir, cacheName(name)))
		}
	}
	return paths, nil
}

// resolved returns a path without symbolic links. The end of the path may not exist.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolved(dir), filepath.Base(path))
	}
	return path
}

func (v *Volumes) hdiutil(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hdiutilTimeout)
	defer cancel()
	output, err := v.Run(ctx, hdiutil, args...)
	if err != nil {
		return nil, fmt.Errorf("hdiutil %s: %w: %s", args[0], err, strings.TrimSpace(string(output)))
	}
	return output, nil
}
