package caches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeHdiutil mounts nothing, and remembers what a Mac would have attached and mounted.
type fakeHdiutil struct {
	calls   []string
	mounted map[string]bool
	// attached has the device of each attached image.
	attached map[string]string
	fails    string
}

func (f *fakeHdiutil) run(_ context.Context, name string, args ...string) ([]byte, error) {
	if args[0] != "info" {
		f.calls = append(f.calls, args[0])
	}
	if name != "/usr/bin/hdiutil" || args[0] == f.fails {
		return []byte("hdiutil: failed\n"), errors.New("exit status 1")
	}
	switch args[0] {
	case "info":
		return f.info(), nil
	case "create":
		return nil, os.WriteFile(args[len(args)-1], []byte(strings.Join(args, " ")), 0o600)
	case "attach":
		image := resolved(args[1])
		if data, err := os.ReadFile(image); err != nil || string(data) == "damaged" || f.attached[image] != "" {
			return []byte("hdiutil: attach failed - Resource temporarily unavailable"), errors.New("exit status 1")
		}
		f.attached[image] = fmt.Sprintf("/dev/disk%d", len(f.calls))
		f.mounted[args[slices.Index(args, "-mountpoint")+1]] = true
	case "detach":
		for image, device := range f.attached {
			if path := strings.TrimSuffix(image, imageSuffix); args[1] == device || args[1] == path {
				delete(f.attached, image)
				delete(f.mounted, path)
				return nil, os.RemoveAll(filepath.Join(path, "data"))
			}
		}
		return []byte("hdiutil: detach failed - No such file or directory"), errors.New("exit status 1")
	}
	return nil, nil
}

// info is the output of `hdiutil info -plist`, of which the volumes come first.
func (f *fakeHdiutil) info() []byte {
	var images strings.Builder
	for image, device := range f.attached {
		fmt.Fprintf(&images, "<dict><key>image-path</key><string>%[1]s</string><key>system-entities</key><array>"+
			"<dict><key>dev-entry</key><string>%[2]ss1</string></dict><dict><key>dev-entry</key><string>%[2]s</string></dict></array></dict>", image, device)
	}
	return []byte(`<?xml version="1.0" encoding="UTF-8"?><plist version="1.0"><dict><key>framework</key><string>671</string><key>images</key><array>` +
		"<dict><key>image-path</key><string>/Users/rack/other.dmg</string></dict>" + images.String() + "</array></dict></plist>")
}

// reboot detaches all.
func (f *fakeHdiutil) reboot() {
	clear(f.mounted)
	clear(f.attached)
}

func newVolumes() (*Volumes, *fakeHdiutil) {
	f := &fakeHdiutil{mounted: map[string]bool{}, attached: map[string]string{}}
	return &Volumes{Run: f.run, Mounted: func(path string) (bool, error) { return f.mounted[path], nil }}, f
}

func TestVolumes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "caches")
	volumes, hdiutil := newVolumes()
	m := New(dir, volumes)
	mac := leased("lease-1", cache("gems", "64Mi"))
	shares, err := m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "lease-1", "gems", "data"), shares[0].Path)
	image := filepath.Join(dir, "lease-1", "gems.sparseimage")
	data, err := os.ReadFile(image)
	require.NoError(t, err)
	assert.Contains(t, string(data), "create -size 64m -type SPARSE -fs APFS -volname gems")
	assert.Equal(t, []string{"create", "attach"}, hdiutil.calls)

	hdiutil.calls = nil
	_, err = m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.Empty(t, hdiutil.calls, "the other instance has it mounted")

	hdiutil.reboot()
	_, err = m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.Equal(t, []string{"attach"}, hdiutil.calls, "the content is kept")

	var erased []string
	require.NoError(t, m.EraseAll(func(names ...string) { erased = append(erased, names...) }))
	require.Len(t, erased, 1, "the directory and the image are one cache")
	assert.Contains(t, erased[0], "caches/lease-1/gems (")
	assert.Empty(t, hdiutil.mounted)
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
}

// A volume that macOS does not mount may be busy: its content is kept, and the next try may
// succeed.
func TestVolumeThatDoesNotMount(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	mac := leased("lease-1", cache("gems", "64Mi"))
	image := filepath.Join(m.dir, "lease-1", "gems.sparseimage")
	require.NoError(t, os.MkdirAll(filepath.Dir(image), 0o700))
	require.NoError(t, os.WriteFile(image, []byte("damaged"), 0o600))
	for range 3 {
		_, err := m.Open(mac, wants("gems"), noneEmptied(t))
		require.ErrorContains(t, err, `cache "gems": failed to mount the volume, whose content is kept; create another lease if this persists: hdiutil attach`)
	}
	data, err := os.ReadFile(image)
	require.NoError(t, err)
	assert.Equal(t, "damaged", string(data))
	assert.Equal(t, []string{"attach", "attach", "attach"}, hdiutil.calls)
	require.NoError(t, os.WriteFile(image, []byte("intact"), 0o600))
	_, err = m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
}

func TestInterruptedCreation(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	image := filepath.Join(m.dir, "lease-1", "gems.new.sparseimage")
	require.NoError(t, os.MkdirAll(filepath.Dir(image), 0o700))
	require.NoError(t, os.WriteFile(image, []byte("incomplete"), 0o600))
	hdiutil.attached[resolved(image)] = "/dev/disk9" // to be formatted
	_, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.NoFileExists(t, image)
	assert.NotContains(t, hdiutil.attached, resolved(image))
}

// An interrupted mount leaves an attached image without a mounted volume.
func TestAttachedVolume(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	mac := leased("lease-1", cache("gems", "64Mi"))
	_, err := m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	clear(hdiutil.mounted)
	hdiutil.calls = nil
	_, err = m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.Equal(t, []string{"detach", "attach"}, hdiutil.calls)

	clear(hdiutil.mounted)
	require.NoError(t, m.EraseAll(ignore))
	assert.Empty(t, hdiutil.attached, "an attached image keeps its storage without its file")
}

// The file of an image may be gone, for example because an operator removed it.
func TestAttachedVolumeWithoutFile(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	_, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	clear(hdiutil.mounted)
	require.NoError(t, os.RemoveAll(filepath.Join(m.dir, "lease-1")))
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Equal(t, []string{"caches/lease-1/gems (attached)"}, left)
	hdiutil.fails = "detach"
	require.ErrorContains(t, m.EraseAll(ignore), "hdiutil detach")
	hdiutil.fails = ""
	require.NoError(t, m.EraseAll(ignore))
	left, err = m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)

	hdiutil.fails = "info"
	_, err = m.Leftovers()
	require.ErrorContains(t, err, "hdiutil info", "nothing proves that no image is attached")
	_, err = New(filepath.Join(t.TempDir(), "caches"), volumes).Leftovers()
	require.NoError(t, err, "a Mac without caches does not depend on hdiutil")
}

// An agent that was killed after the first mount had not excluded the volume from Spotlight yet.
func TestSpotlight(t *testing.T) {
	volumes, _ := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	mac := leased("lease-1", cache("gems", "64Mi"))
	_, err := m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	marker := filepath.Join(m.dir, "lease-1", "gems", ".metadata_never_index")
	require.NoError(t, os.Remove(marker))
	_, err = m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.FileExists(t, marker)
}

// A guest must not write to the disk of the Mac in place of a volume that is not mounted.
func TestVolumeThatIsNotMounted(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	for _, step := range []string{"create", "attach"} {
		hdiutil.fails = step
		_, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
		require.ErrorContains(t, err, "hdiutil "+step+": exit status 1: hdiutil: failed")
		assert.NoDirExists(t, filepath.Join(m.dir, "lease-1", "gems", "data"))
	}
	hdiutil.fails = ""
	_, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	hdiutil.fails = "detach"
	require.ErrorContains(t, m.EraseAll(ignore), "hdiutil detach")
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Contains(t, left, "caches/lease-1/gems.sparseimage")
}
