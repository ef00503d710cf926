package caches

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/vm/contract"
)

const mib = 1 << 20

func leased(uid types.UID, caches ...rackv1alpha1.LeaseCache) *rackv1alpha1.MacNode {
	mac := &rackv1alpha1.MacNode{}
	mac.Name = "mac-1"
	mac.Status.LeaseRef = &rackv1alpha1.LeaseReference{Namespace: "acme", Name: "build", UID: uid}
	mac.Status.Caches = caches
	return mac
}

func cache(name, size string) rackv1alpha1.LeaseCache {
	return rackv1alpha1.LeaseCache{Name: name, SizeLimit: scalar.MustParse(size)}
}

func wants(names ...string) []instancev1alpha1.InstanceCache {
	var all []instancev1alpha1.InstanceCache
	for _, name := range names {
		all = append(all, instancev1alpha1.InstanceCache{Name: name})
	}
	return all
}

func put(t *testing.T, share contract.Share, name string, size int) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(share.Path, name), make([]byte, size), 0o600))
}

func ignore(...string) {}

// noneEmptied fails if a cache is emptied.
func noneEmptied(t *testing.T) func(name, reason string) {
	return func(name, reason string) { t.Errorf("cache %s was emptied: %s", name, reason) }
}

func TestCachesLiveWithTheLease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "caches")
	m := New(dir, Directories{})
	mac := leased("lease-1", cache("gems", "64Mi"), cache("derived-data", "1Gi"))
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left, "no cache was ever used")

	shares, err := m.Open(mac, []instancev1alpha1.InstanceCache{{Name: "gems"}, {Name: "derived-data", ReadOnly: true}}, noneEmptied(t))
	require.NoError(t, err)
	assert.Equal(t, []contract.Share{
		{Name: "gems", Path: filepath.Join(dir, "lease-1", "gems", "data")},
		{Name: "derived-data", Path: filepath.Join(dir, "lease-1", "derived-data", "data"), ReadOnly: true},
	}, shares)
	put(t, shares[0], "a", mib)

	again, err := New(dir, Directories{}).Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.FileExists(t, filepath.Join(again[0].Path, "a"), "the next instance of the lease has it, also after a restart of the agent")
	assert.InDelta(t, 1<<30+63*mib, m.Reserved(mac), 1*mib, "the caches may still take this")

	left, err = m.Leftovers()
	require.NoError(t, err)
	assert.Equal(t, []string{"caches/lease-1", "caches/lease-1/derived-data", "caches/lease-1/gems"}, left)
	var erased []string
	require.NoError(t, m.EraseAll(func(names ...string) { erased = append(erased, names...) }))
	require.Len(t, erased, 2, "one line for each cache")
	assert.Regexp(t, `^caches/lease-1/derived-data \(\d+ bytes\)$`, erased[0])
	assert.Regexp(t, `^caches/lease-1/gems \(10\d{5} bytes\)$`, erased[1])
	left, err = m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Zero(t, m.Reserved(&rackv1alpha1.MacNode{}), "not leased")
}

// A scrub may have been interrupted, or the API restored from a backup.
func TestCachesOfAnotherLease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "caches")
	m := New(dir, Directories{})
	old, err := m.Open(leased("lease-1", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	put(t, old[0], "secret", 1)

	shares, err := m.Open(leased("lease-2", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	assert.NoDirExists(t, filepath.Join(dir, "lease-1"))
	assert.NoFileExists(t, filepath.Join(shares[0].Path, "secret"))

	// Also before an instance that uses no cache.
	_, err = m.Open(leased("lease-3"), nil, noneEmptied(t))
	require.NoError(t, err)
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestNoSuchCache(t *testing.T) {
	base := t.TempDir()
	m := New(filepath.Join(base, "caches"), Directories{})
	require.NoError(t, os.MkdirAll(filepath.Join(base, "caches", "lease-2", "gems"), 0o700))
	for _, name := range []string{"rpms", "..", "../lease-2/gems", "a/b", "/etc", ".", ""} {
		mac := leased("lease-1", cache("gems", "64Mi"))
		_, err := m.Open(mac, wants(name), noneEmptied(t))
		require.ErrorContains(t, err, "has no cache", name)
		mac.Status.Caches = append(mac.Status.Caches, cache(name, "64Mi")) // a server that does not validate
		if name != "rpms" {
			_, err = m.Open(mac, wants(name), noneEmptied(t))
			require.ErrorContains(t, err, "has no cache", name)
		}
	}
	_, err := m.Open(leased("../../x", cache("gems", "64Mi")), wants("gems"), noneEmptied(t))
	require.ErrorContains(t, err, "invalid UID")
}

// The host follows no symbolic link that a guest made.
func TestSymbolicLinks(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	require.NoError(t, os.Mkdir(outside, 0o500))
	large := filepath.Join(outside, "large")
	require.NoError(t, os.Chmod(outside, 0o700))
	require.NoError(t, os.WriteFile(large, make([]byte, 8*mib), 0o600))
	require.NoError(t, os.Chmod(outside, 0o500))
	m := New(filepath.Join(base, "caches"), Directories{})
	mac := leased("lease-1", cache("gems", "64Mi"))
	shares, err := m.Open(mac, wants("gems"), noneEmptied(t))
	require.NoError(t, err)
	for name, target := range map[string]string{"dir": outside, "file": large, "loop": ".", "up": "../../../.."} {
		require.NoError(t, os.Symlink(target, filepath.Join(shares[0].Path, name)))
	}
	require.NoError(t, os.Link(large, filepath.Join(shares[0].Path, "hard")), "a guest cannot do this; its own file counts once")
	require.NoError(t, os.Link(large, filepath.Join(shares[0].Path, "hard-2")))

	used, files, err := Directories{}.measure(filepath.Join(base, "caches", "lease-1", "gems"))
	require.NoError(t, err)
	assert.Less(t, used, int64(9*mib))
	assert.Equal(t, 8, files)
	unlock(filepath.Join(base, "caches", "lease-1", "gems"))
	require.NoError(t, m.EraseAll(ignore))
	assert.FileExists(t, large)
	info, err := os.Stat(outside)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o500), info.Mode().Perm())
	require.NoError(t, os.Chmod(outside, 0o700))
}

// A cache beyond its limits is the tenant's problem: it is emptied before its next use.
func TestFullCache(t *testing.T) {
	m := New(filepath.Join(t.TempDir(), "caches"), Directories{MaxFiles: 100})
	mac := leased("lease-1", cache("gems", "64Mi"))
	var emptied []string
	open := func() contract.Share {
		shares, err := m.Open(mac, wants("gems"), func(name, reason string) { emptied = append(emptied, name+": "+reason) })
		require.NoError(t, err)
		return shares[0]
	}
	put(t, open(), "a", 63*mib)
	assert.FileExists(t, filepath.Join(open().Path, "a"))
	put(t, open(), "b", 2*mib)
	assert.Zero(t, m.Reserved(mac), "it takes no room of others")
	assert.NoFileExists(t, filepath.Join(open().Path, "a"))

	for i := range 101 {
		put(t, open(), fmt.Sprint(i), 0)
		if i > 90 {
			break
		}
	}
	assert.FileExists(t, filepath.Join(open().Path, "1"))
	for i := range 101 {
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, "lease-1", "gems", "data", fmt.Sprint(i)), nil, 0o600))
	}
	assert.NoFileExists(t, filepath.Join(open().Path, "1"), "more files than the limit")
	require.Len(t, emptied, 2)
	assert.Regexp(t, `^gems: it had 6\d{7} bytes, and its limit is 67108864 bytes$`, emptied[0])
	assert.Equal(t, "gems: it had more than 100 files", emptied[1])
}

// A guest may make directories unreadable.
func TestUnreadableDirectories(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "gems")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "data", "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path, "data", "a", "b", "c"), nil, 0o600))
	require.NoError(t, os.Chmod(filepath.Join(path, "data", "a", "b"), 0))
	require.NoError(t, os.Chmod(filepath.Join(path, "data", "a"), 0))
	unlock(path) // root can remove them without
	info, err := os.Stat(filepath.Join(path, "data", "a", "b"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, Directories{}.Erase(path))
	assert.NoDirExists(t, path)
}

// A disk whose cache cannot be erased leaves the cache in the list, which keeps the Mac from its
// release.
type stuck struct{ Directories }

func (stuck) Erase(path string) error {
	if filepath.Base(path) == "gems" {
		return errors.New("busy")
	}
	return Directories{}.Erase(path)
}

func TestCacheThatRemains(t *testing.T) {
	m := New(filepath.Join(t.TempDir(), "caches"), stuck{})
	_, err := m.Open(leased("lease-1", cache("gems", "64Mi"), cache("rpms", "64Mi")), wants("gems", "rpms"), noneEmptied(t))
	require.NoError(t, err)
	require.ErrorContains(t, m.EraseAll(ignore), "busy")
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Equal(t, []string{"caches/lease-1", "caches/lease-1/gems"}, left, "the other one is erased nevertheless")
	_, err = m.Open(leased("lease-2"), nil, noneEmptied(t))
	require.ErrorContains(t, err, "caches of an earlier lease", "no guest starts beside it")
}

func TestForeignFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "caches")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "lease-1"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lease-1", "file"), nil, 0o600))
	require.NoError(t, os.Symlink("/", filepath.Join(dir, "lease-1", "root")))
	require.NoError(t, os.Symlink("/", filepath.Join(dir, "root")))
	m := New(dir, Directories{})
	left, err := m.Leftovers()
	require.NoError(t, err)
	assert.Len(t, left, 5)
	assert.NotContains(t, strings.Join(left, " "), "etc")
	require.NoError(t, m.EraseAll(ignore))
	left, err = m.Leftovers()
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.DirExists(t, "/etc")
}
