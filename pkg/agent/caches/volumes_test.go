package caches

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeHdiutil mounts nothing, and remembers what a Mac would have mounted.
type fakeHdiutil struct {
	calls   []string
	mounted map[string]bool
	fails   string
}

func (f *fakeHdiutil) run(_ context.Context, name string, args ...string) ([]byte, error) {
	f.calls = append(f.calls, args[0])
	if name != "/usr/bin/hdiutil" || args[0] == f.fails {
		return []byte("hdiutil: failed\n"), errors.New("exit status 1")
	}
	switch args[0] {
	case "create":
		return nil, os.WriteFile(args[len(args)-1], []byte(strings.Join(args, " ")), 0o600)
	case "attach":
		if data, err := os.ReadFile(args[1]); err != nil || string(data) == "damaged" {
			return []byte("hdiutil: attach failed - image not recognized"), errors.New("exit status 1")
		}
		f.mounted[args[slices.Index(args, "-mountpoint")+1]] = true
	case "detach":
		delete(f.mounted, args[1])
		return nil, os.RemoveAll(filepath.Join(args[1], "data"))
	}
	return nil, nil
}

func newVolumes() (*Volumes, *fakeHdiutil) {
	f := &fakeHdiutil{mounted: map[string]bool{}}
	return &Volumes{Run: f.run, Mounted: func(path string) (bool, error) { return f.mounted[path], nil }}, f
}

func TestVolumes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "caches")
	volumes, hdiutil := newVolumes()
	m := New(dir, volumes)
	mac := leased("lease-1", cache("gems", "64Mi"))
	shares, err := m.Open(mac, wants("gems"))
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "lease-1", "gems", "data"), shares[0].Path)
	image := filepath.Join(dir, "lease-1", "gems.sparseimage")
	data, err := os.ReadFile(image)
	require.NoError(t, err)
	assert.Contains(t, string(data), "create -size 64m -type SPARSE -fs APFS -volname gems")
	assert.Equal(t, []string{"create", "attach"}, hdiutil.calls)

	hdiutil.calls = nil
	_, err = m.Open(mac, wants("gems"))
	require.NoError(t, err)
	assert.Empty(t, hdiutil.calls, "the other instance has it mounted")

	clear(hdiutil.mounted) // a reboot
	_, err = m.Open(mac, wants("gems"))
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

func TestDamagedVolume(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	mac := leased("lease-1", cache("gems", "64Mi"))
	image := filepath.Join(m.dir, "lease-1", "gems.sparseimage")
	require.NoError(t, os.MkdirAll(filepath.Dir(image), 0o700))
	require.NoError(t, os.WriteFile(image, []byte("damaged"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "lease-1", "gems.new.sparseimage"), []byte("incomplete"), 0o600))
	_, err := m.Open(mac, wants("gems"))
	require.NoError(t, err)
	assert.Equal(t, []string{"attach", "create", "attach"}, hdiutil.calls)
	assert.NoFileExists(t, filepath.Join(m.dir, "lease-1", "gems.new.sparseimage"))
}

// A guest must not write to the disk of the Mac in place of a volume that is not mounted.
func TestVolumeThatIsNotMounted(t *testing.T) {
	volumes, hdiutil := newVolumes()
	m := New(filepath.Join(t.TempDir(), "caches"), volumes)
	for _, step := range []string{"create", "attach"} {
		hdiutil.fails = step
		_, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"))
		require.ErrorContains(t, err, `cache "gems": hdiutil `+step+": exit status 1: hdiutil: failed")
		assert.NoDirExists(t, filepath.Join(m.dir, "lease-1", "gems", "data"))
	}
	hdiutil.fails = ""
	_, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"))
	require.NoError(t, err)
	hdiutil.fails = "detach"
	require.ErrorContains(t, m.EraseAll(ignore), "hdiutil detach")
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Contains(t, left, "caches/lease-1/gems.sparseimage")
}
