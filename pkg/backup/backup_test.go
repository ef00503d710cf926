package backup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testingclock "k8s.io/utils/clock/testing"
)

var now = time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC)

// key returns a new pair of keys.
func key(t *testing.T) *age.X25519Identity {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	return identity
}

// content returns what etcd sends for a database.
func content(pages int) []byte {
	database := bytes.Repeat([]byte("macrack!"), pages*page/8)
	sum := sha256.Sum256(database)
	return append(database, sum[:]...)
}

// stores calls test with an empty store of each kind.
func stores(t *testing.T, test func(t *testing.T, store Store)) {
	t.Helper()
	t.Run("directory", func(t *testing.T) { test(t, Directory(t.TempDir())) })
	t.Run("S3", func(t *testing.T) {
		_, store := newFakeS3(t)
		test(t, store)
	})
}

func listNames(t *testing.T, store Store) (all []string) {
	t.Helper()
	snapshots, err := List(t.Context(), store)
	require.NoError(t, err)
	for _, s := range snapshots {
		all = append(all, s.Name())
	}
	return all
}

func TestNames(t *testing.T) {
	s := Snapshot{Time: now, Revision: 4711}
	assert.Equal(t, "macrack-20260915T120000Z-r4711.db.zst.age", s.Name())
	parsed, ok := Parse(s.Name())
	assert.True(t, ok)
	assert.Equal(t, s, parsed)
	for _, name := range []string{"", "macrack-20260915T120000Z-r4711.db", "x" + s.Name(), s.Name() + ".part", "../" + s.Name(),
		"macrack-20269915T120000Z-r4711.db.zst.age", "macrack-20260915T120000Z-r-1.db.zst.age"} {
		_, ok := Parse(name)
		assert.False(t, ok, name)
	}
}

func TestRoundTrip(t *testing.T) {
	alice, bob := key(t), key(t)
	stores(t, func(t *testing.T, store Store) {
		s := Snapshot{Time: now, Revision: 1}
		want := content(1000)
		require.NoError(t, put(t.Context(), store, s.Name(), bytes.NewReader(want), []age.Recipient{alice.Recipient(), bob.Recipient()}))
		assert.Equal(t, []string{s.Name()}, listNames(t, store))

		object, err := store.Get(t.Context(), s.Name())
		require.NoError(t, err)
		stored, err := io.ReadAll(object)
		require.NoError(t, err)
		require.NoError(t, object.Close())
		assert.NotContains(t, string(stored), "macrack!", "not encrypted")
		for _, identity := range []age.Identity{alice, bob} {
			var have bytes.Buffer
			require.NoError(t, Fetch(t.Context(), store, s, []age.Identity{identity}, &have))
			assert.True(t, bytes.Equal(want, have.Bytes()))
		}

		err = Fetch(t.Context(), store, s, []age.Identity{key(t)}, io.Discard)
		assert.ErrorIs(t, err, errIdentity)
		err = Fetch(t.Context(), store, Snapshot{Time: now, Revision: 2}, []age.Identity{alice}, io.Discard)
		assert.Error(t, err, "no such snapshot")
	})
}

// Large snapshots have several parts in a bucket.
func TestSeveralParts(t *testing.T) {
	fake, store := newFakeS3(t)
	parts := 0
	fake.refuse = func(r *http.Request) string {
		if r.URL.Query().Has("partNumber") {
			parts++
		}
		return ""
	}
	want := make([]byte, 2*partSize+1000)
	require.NoError(t, store.Put(t.Context(), "large", bytes.NewReader(want)))
	assert.Equal(t, 3, parts)
	assert.True(t, bytes.Equal(want, fake.objects["prod/large"]))
}

// A snapshot that is not complete never appears.
func TestBadSnapshots(t *testing.T) {
	good := content(1000)
	wrong := bytes.Clone(good)
	wrong[700] ^= 1
	recipients := []age.Recipient{key(t).Recipient()}
	for name, test := range map[string]struct {
		snapshot []byte
		end      error
		err      string
	}{
		"empty":            {nil, io.EOF, "truncated"},
		"no hash":          {good[:len(good)-sha256.Size], io.EOF, "truncated"},
		"half a page":      {good[:1000], io.EOF, "truncated"},
		"fewer pages":      {good[:500*page+sha256.Size], io.EOF, "SHA-256 of the snapshot is wrong"},
		"a changed byte":   {wrong, io.EOF, "SHA-256 of the snapshot is wrong"},
		"an early end":     {good[:1000], io.ErrUnexpectedEOF, "unexpected EOF"},
		"etcd has stopped": {good, errors.New("connection reset"), "connection reset"},
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(t *testing.T, store Store) {
				source := io.MultiReader(bytes.NewReader(test.snapshot), errorReader{test.end})
				err := put(t.Context(), store, Snapshot{Time: now}.Name(), source, recipients)
				assert.ErrorContains(t, err, test.err)
				assert.ErrorContains(t, err, "check the health of etcd")
				objects, err := store.List(t.Context())
				require.NoError(t, err)
				assert.Empty(t, objects)
			})
		})
	}
}

// A snapshot does not appear while it is written.
func TestUnfinished(t *testing.T) {
	stores(t, func(t *testing.T, store Store) {
		name := Snapshot{Time: now, Revision: 1}.Name()
		reader, writer := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- store.Put(t.Context(), name, reader) }()
		_, err := writer.Write([]byte("half"))
		require.NoError(t, err)
		assert.Empty(t, listNames(t, store))
		require.NoError(t, writer.Close())
		require.NoError(t, <-done)
		assert.Equal(t, []string{name}, listNames(t, store))
	})
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// Damaged objects are never fetched.
func TestDamagedObjects(t *testing.T) {
	identity := key(t)
	store := Directory(t.TempDir())
	s := Snapshot{Time: now}
	require.NoError(t, put(t.Context(), store, s.Name(), bytes.NewReader(content(1000)), []age.Recipient{identity.Recipient()}))
	path := filepath.Join(string(store), s.Name())
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	changed := bytes.Clone(good)
	changed[len(changed)-20] ^= 1
	for name, damaged := range map[string][]byte{"empty": nil, "half": good[:len(good)/2], "no last byte": good[:len(good)-1], "changed": changed, "longer": append(bytes.Clone(good), 0)} {
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		err := Fetch(t.Context(), store, s, []age.Identity{identity}, io.Discard)
		assert.ErrorContains(t, err, "fetch an older snapshot", name)
	}
	// Another program can encrypt what is no snapshot.
	var encrypted bytes.Buffer
	w, err := age.Encrypt(&encrypted, identity.Recipient())
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(path, encrypted.Bytes(), 0o600))
	assert.ErrorContains(t, Fetch(t.Context(), store, s, []age.Identity{identity}, io.Discard), "truncated")

	// The remedy is another one if the file that is written is the problem.
	require.NoError(t, os.WriteFile(path, good, 0o600))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err == nil {
		defer full.Close()
		err := Fetch(t.Context(), store, s, []age.Identity{identity}, full)
		assert.ErrorContains(t, err, "no space left")
		assert.NotContains(t, err.Error(), "older snapshot")
	}
}

// Save with a fake clock and an etcd of the test.
func TestRetention(t *testing.T) {
	server := startEtcd(t, filepath.Join(t.TempDir(), "etcd"))
	recipients := []age.Recipient{key(t).Recipient()}
	stores(t, func(t *testing.T, store Store) {
		clock := testingclock.NewFakePassiveClock(now)
		save := func(keep int) (Snapshot, []Snapshot, error) {
			clock.SetTime(clock.Now().Add(time.Hour))
			_, err := server.client.Put(t.Context(), "key", "value")
			require.NoError(t, err)
			return Save(t.Context(), store, SaveOptions{Etcd: server.etcd, Recipients: recipients, Keep: keep, Clock: clock})
		}
		require.NoError(t, store.Put(t.Context(), "another-file.age", strings.NewReader("of the user")))
		var want []string
		for i := range 6 {
			saved, deleted, err := save(3)
			require.NoError(t, err)
			want = append([]string{saved.Name()}, want[:min(2, len(want))]...)
			assert.Equal(t, want, listNames(t, store))
			assert.Len(t, deleted, map[bool]int{true: 1}[i >= 3])
		}
		saved, deleted, err := save(0)
		require.NoError(t, err)
		assert.Empty(t, deleted)
		want = append([]string{saved.Name()}, want...)

		// A clock that is wrong, now or earlier.
		clock.SetTime(clock.Now().Add(-48 * time.Hour))
		early, _, err := save(1)
		assert.ErrorAs(t, err, new(Finding))
		assert.ErrorContains(t, err, "newer than the clock")
		assert.Equal(t, append(want, early.Name()), listNames(t, store), "nothing is deleted, and the snapshot is saved")
		clock.SetTime(now.Add(48 * time.Hour))

		// An etcd that has lost its data.
		lost := startEtcd(t, filepath.Join(t.TempDir(), "etcd"))
		late, _, err := Save(t.Context(), store, SaveOptions{Etcd: lost.etcd, Recipients: recipients, Keep: 1, Clock: clock})
		assert.ErrorAs(t, err, new(Finding))
		assert.ErrorContains(t, err, "etcd has lost data: its revision is 1, and "+want[0])
		assert.Equal(t, append(append([]string{late.Name()}, want...), early.Name()), listNames(t, store))

		// The new etcd reaches the revision of the old one.
		for range early.Revision {
			_, err := lost.client.Put(t.Context(), "key", "value")
			require.NoError(t, err)
		}
		overtake := func(keep int) (Snapshot, error) {
			clock.SetTime(clock.Now().Add(time.Hour))
			saved, _, err := Save(t.Context(), store, SaveOptions{Etcd: lost.etcd, Recipients: recipients, Keep: keep, Clock: clock})
			return saved, err
		}
		before := listNames(t, store)
		saved, err = overtake(1)
		assert.ErrorAs(t, err, new(Finding))
		assert.ErrorContains(t, err, late.Name()+" has a lower revision than "+want[0])
		assert.Equal(t, append([]string{saved.Name()}, before...), listNames(t, store), "nothing is deleted")
		_, err = overtake(0)
		require.NoError(t, err, "nothing would be deleted")
		for _, name := range append(want, early.Name()) {
			require.NoError(t, store.Delete(t.Context(), name))
		}
		saved, err = overtake(1)
		require.NoError(t, err)
		assert.Equal(t, []string{saved.Name()}, listNames(t, store))

		objects, err := store.List(t.Context())
		require.NoError(t, err)
		assert.Contains(t, objects, "another-file.age")
	})
}
