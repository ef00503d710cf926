package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/agent/doctor"
	"macrack.io/macrack/pkg/agent/images"
)

const (
	// maxCloneTime and maxCloneSize bound a clone that shares the blocks of its source.
	maxCloneTime = time.Second
	maxCloneSize = 64 << 20
	// zerosSize is the size of the file of checkZeros, in bytes.
	zerosSize = 64 << 20
)

// clusterChecks are the checks of doctor that need a cluster or an agent.
var clusterChecks = map[string]bool{"certificate": true, "server": true, "registry": true, "leftovers": true, "foreign-vms": true}

func checkDoctor(ctx context.Context, b *bench) error {
	if b.Doctor == nil {
		return &errSkip{"this is not a Mac"}
	}
	var failed []string
	for _, result := range b.Doctor(ctx) {
		if clusterChecks[result.Check] {
			continue // its message has names of hosts
		}
		b.measure(result.Check, "%s: %s", result.Status, result.Message)
		if result.Status == doctor.Fail {
			failed = append(failed, result.Check)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("doctor fails: %s", strings.Join(failed, ", "))
	}
	return nil
}

func checkHost(_ context.Context, b *bench) error {
	first, err := b.Host.Info()
	if err != nil {
		return err
	}
	second, err := b.Host.Info()
	if err != nil {
		return err
	}
	b.measure("model", "%s", first.ModelIdentifier)
	b.measure("macOS", "%s", first.MacOSVersion)
	b.measure("CPU", "%d", first.CPU)
	b.measure("memory", "%s", images.Size(first.Memory))
	b.measure("storage", "%s, of which %s free", images.Size(first.Storage), images.Size(first.FreeStorage))
	switch {
	case first.SerialNumber == "", first.ModelIdentifier == "", first.MacOSVersion == "", first.BootID == "":
		return errors.New("a fact of the host is empty")
	case first.CPU < 1, first.Memory < 1, first.Storage < 1, first.FreeStorage < 1:
		return errors.New("a number of the host is not positive")
	case first.BootID != second.BootID:
		return fmt.Errorf("the boot ID changed from %s to %s without a reboot", first.BootID, second.BootID)
	}
	return &errAsk{fmt.Sprintf("Is this what System Settings > General > About shows? Model %s, macOS %s, memory %s. The serial number ends with %s.",
		first.ModelIdentifier, first.MacOSVersion, images.Size(first.Memory), first.SerialNumber[max(0, len(first.SerialNumber)-4):])}
}

func checkKeychain(ctx context.Context, b *bench) error {
	if b.KeychainLocked == nil {
		return &errSkip{"this is not a Mac"}
	}
	locked, err := b.KeychainLocked(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w; run the acceptance in Terminal at the screen, because SSH does not see the login keychain", err)
	case locked:
		return errors.New("the login keychain is locked; run security unlock-keychain login.keychain-db, then security set-keychain-settings login.keychain-db")
	}
	return nil
}

func checkClones(_ context.Context, b *bench) error {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return err
	}
	before, err := disk.Free(b.Dir)
	if err != nil {
		return err
	}
	path := filepath.Join(b.Dir, "clone.img")
	defer os.Remove(path)
	began := b.Clock.Now()
	method, err := disk.Clone(b.Image.Disk, path, b.DiskSize)
	if err != nil {
		return err
	}
	took := b.took("time", began)
	after, err := disk.Free(b.Dir)
	if err != nil {
		return err
	}
	b.measure("storage", "%s", images.Size(max(0, before-after)))
	b.measure("method", "%s", method)
	switch {
	case method != disk.CopyOnWrite:
		return &errSkip{"the file system cannot clone files"}
	case took > maxCloneTime:
		return fmt.Errorf("the clone took %s, at most %s is expected", took, maxCloneTime)
	case before-after > maxCloneSize:
		return fmt.Errorf("the clone occupies %s, at most %s is expected", images.Size(before-after), images.Size(maxCloneSize))
	}
	return nil
}

func checkRegistry(ctx context.Context, b *bench) error {
	if b.Registry == "" {
		return &errSkip{"no --registry was given"}
	}
	dir := filepath.Join(b.Dir, "registry")
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	want := bytes.Repeat([]byte("MacRack\n"), zerosSize/8)
	clear(want[zerosSize/4 : zerosSize*3/4])
	source := images.PushOptions{
		Disk: filepath.Join(dir, "disk.img"), Aux: filepath.Join(dir, "nvram.bin"), HardwareModel: b.Image.HardwareModel,
		Reference: b.Registry, Credential: b.Credential, Clock: b.Clock,
	}
	if err := errors.Join(writeHole(source.Disk, want), os.WriteFile(source.Aux, []byte("nvram"), 0o600)); err != nil {
		return err
	}
	began := b.Clock.Now()
	pushed, err := images.Push(ctx, source)
	if err != nil {
		return err
	}
	b.took("push", began)
	began = b.Clock.Now()
	store := &images.OCI{Dir: filepath.Join(dir, "images"), Clock: b.Clock}
	pulled, err := store.Ensure(ctx, images.Image{Name: "acceptance", Reference: b.Registry, Digest: pushed.Digest.String(), DiskSize: pushed.DiskSize}, images.Needs{})
	if err != nil {
		return err
	}
	b.took("pull", began)
	got, err := os.ReadFile(pulled.Disk)
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("the pulled disk differs from the pushed one")
	}
	return err
}

// writeHole writes the first and the last quarter of a file, and leaves a hole between.
func writeHole(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	quarter := len(data) / 4
	_, first := f.WriteAt(data[:quarter], 0)
	_, last := f.WriteAt(data[3*quarter:], int64(3*quarter))
	return errors.Join(first, last, f.Close())
}

func checkZeros(_ context.Context, b *bench) error {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(b.Dir, "zeros.img")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	want := bytes.Repeat([]byte("MacRack\n"), zerosSize/8)
	if _, err := f.Write(want); err != nil {
		return err
	}
	allocated := func() int64 {
		info, err := f.Stat()
		if err != nil {
			return 0
		}
		return disk.Allocated(info)
	}
	before := allocated()
	if err := disk.Zero(f, zerosSize/4, zerosSize/2); err != nil {
		return err
	}
	b.measure("storage", "%s before, %s after", images.Size(before), images.Size(allocated()))
	clear(want[zerosSize/4 : zerosSize*3/4])
	got, err := io.ReadAll(io.NewSectionReader(f, 0, zerosSize))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("the file differs from what was written and zeroed")
	}
	return nil
}
