package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"howett.net/plist"
)

const (
	// growTimeout bounds the growth of the disk.
	growTimeout = 10 * time.Minute
	// minGrowth is the unpartitioned space that is worth the growth, in bytes.
	minGrowth = 1 << 30

	diskutil = "/usr/sbin/diskutil"
)

// diskGrower grows the file system of macOS to the size of the disk: a clone of an image may have a
// larger disk than the image.
type diskGrower struct {
	// run runs a command with an input and returns its output.
	run func(ctx context.Context, input, name string, args ...string) ([]byte, error)
}

// runCommand runs a command. Its error has the end of the output.
func runCommand(ctx context.Context, input, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = drain
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Fields(errs.String() + " " + string(out))
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, strings.Join(lines[max(0, len(lines)-40):], " "))
	}
	return out, nil
}

// volume is the relevant part of `diskutil info -plist VOLUME`.
type volume struct {
	APFSPhysicalStores []struct{ APFSPhysicalStore string }
}

// layout is the relevant part of `diskutil list -plist DISK`.
type layout struct {
	AllDisksAndPartitions []struct {
		DeviceIdentifier string
		Size             int64
		Partitions       []struct {
			DeviceIdentifier, Content string
			Size                      int64
		}
	}
}

// grow grows the container of the system volume. It does nothing if the disk has no room after the
// container.
func (g *diskGrower) grow(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, growTimeout, fmt.Errorf("diskutil did not end within %s", growTimeout))
	defer cancel()
	store, free, err := g.find(ctx)
	if err != nil || free < minGrowth {
		return err
	}
	// The partition table still ends where the image's disk ended.
	if _, err := g.run(ctx, "y\n", diskutil, "repairDisk", wholeDisk(store)); err != nil {
		return err
	}
	_, err = g.run(ctx, "", diskutil, "apfs", "resizeContainer", store, "0")
	return err
}

// find returns the partition of the system volume, and the number of bytes after it that belong to
// no partition.
func (g *diskGrower) find(ctx context.Context) (store string, free int64, err error) {
	var root volume
	if err := g.query(ctx, &root, "info", "-plist", "/"); err != nil {
		return "", 0, err
	}
	if len(root.APFSPhysicalStores) != 1 {
		return "", 0, fmt.Errorf("the system volume has %d physical stores, must have 1", len(root.APFSPhysicalStores))
	}
	store = root.APFSPhysicalStores[0].APFSPhysicalStore
	var disk layout
	if err := g.query(ctx, &disk, "list", "-plist", wholeDisk(store)); err != nil {
		return "", 0, err
	}
	if len(disk.AllDisksAndPartitions) != 1 || disk.AllDisksAndPartitions[0].DeviceIdentifier != wholeDisk(store) {
		return "", 0, fmt.Errorf("diskutil shows no %s", wholeDisk(store))
	}
	free = disk.AllDisksAndPartitions[0].Size
	found, following := false, ""
	for _, partition := range disk.AllDisksAndPartitions[0].Partitions {
		free -= partition.Size
		if found {
			following = partition.DeviceIdentifier + " (" + partition.Content + ")"
		}
		found = found || partition.DeviceIdentifier == store
	}
	switch {
	case !found:
		return "", 0, fmt.Errorf("diskutil shows no partition %s", store)
	case following != "" && free >= minGrowth:
		return "", 0, fmt.Errorf("partition %s follows the system's %s; remove it from the image, so that the system can grow", following, store)
	}
	return store, free, nil
}

func (g *diskGrower) query(ctx context.Context, into any, args ...string) error {
	out, err := g.run(ctx, "", diskutil, args...)
	if err != nil {
		return err
	}
	if err := plist.NewDecoder(strings.NewReader(string(out))).Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("diskutil %s: %w", args[0], err)
	}
	return nil
}

// wholeDisk returns the disk of a partition: disk0 of disk0s2.
func wholeDisk(partition string) string {
	if i := strings.LastIndex(partition, "s"); i > len("disk") {
		return partition[:i]
	}
	return partition
}
