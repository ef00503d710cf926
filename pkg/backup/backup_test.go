package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/test/registrytest"
)

var noon = testingclock.NewFakePassiveClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))

func newKey(t *testing.T) *age.X25519Identity {
	key, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	return key
}

// stores returns an empty store of each kind.
func stores(t *testing.T) map[string]Store {
	_, s3 := startS3(t)
	stores := map[string]Store{}
	for name, location := range map[string]string{"folder": t.TempDir(), "bucket": "s3://backups/macrack/lab"} {
		store, err := NewStore(location, s3)
		require.NoError(t, err)
		stores[name] = store
	}
	return stores
}

// A backup is encrypted, and the owner of a private key gets the snapshot of etcd from it.
func TestBackup(t *testing.T) {
	etcd, key, other := registrytest.StartEtcd(t), newKey(t), newKey(t)
	secret := "a secret value"
	_, err := etcd.Client.Put(t.Context(), "/registry/x", secret)
	require.NoError(t, err)
	servers := Etcd{Servers: []string{"http://127.0.0.1:1", etcd.Endpoint}}
	for kind, store := range stores(t) {
		t.Run(kind, func(t *testing.T) {
			name, err := Create(t.Context(), servers, store, []age.Recipient{newKey(t).Recipient(), key.Recipient()}, noon)
			require.NoError(t, err)
			assert.Equal(t, "etcd-20261130T120000Z-2.db.age", name)
			names, err := List(t.Context(), store)
			require.NoError(t, err)
			assert.Equal(t, []string{name}, names)

			stored, err := store.Open(t.Context(), name)
			require.NoError(t, err)
			encrypted, err := io.ReadAll(stored)
			require.NoError(t, errors.Join(err, stored.Close()))
			assert.NotContains(t, string(encrypted), secret)
			var snapshot bytes.Buffer
			require.NoError(t, Fetch(t.Context(), store, name, []age.Identity{key}, &snapshot))
			assert.Contains(t, snapshot.String(), secret)
			assert.EqualValues(t, 32, snapshot.Len()%512, "the hash is at the end, as etcdutl needs it")

			assert.ErrorContains(t, Fetch(t.Context(), store, name, []age.Identity{other}, io.Discard), "for other keys")
			assert.Error(t, Fetch(t.Context(), store, "etcd-20261130T120000Z-9.db.age", []age.Identity{key}, io.Discard))
			for damage, damaged := range map[string][]byte{
				"is cut":      encrypted[:len(encrypted)-1000],
				"was changed": append(append([]byte{}, encrypted[:9000]...), append([]byte{encrypted[9000] ^ 1}, encrypted[9001:]...)...),
			} {
				require.NoError(t, store.Put(t.Context(), "damaged", bytes.NewReader(damaged)))
				assert.Error(t, Fetch(t.Context(), store, "damaged", []age.Identity{key}, io.Discard), "the backup %s", damage)
			}
		})
	}
}

// A snapshot that ends early leaves nothing in a store, in whatever way it ends.
func TestIncompleteSnapshot(t *testing.T) {
	content := bytes.NewReader
	half := bytes.Repeat([]byte{7}, 100_000)
	for kind, store := range stores(t) {
		for name, snapshot := range map[string]io.Reader{
			"the hash is missing":      content(half),
			"it is empty":              content(nil),
			"the connection ends":      io.MultiReader(content(half), iotest.ErrReader(io.ErrUnexpectedEOF)),
			"the connection is closed": io.MultiReader(content(half), iotest.ErrReader(errors.New("closed"))),
		} {
			encrypted, err := age.EncryptReader(newVerifier(snapshot), newKey(t).Recipient())
			require.NoError(t, err)
			assert.Error(t, store.Put(t.Context(), "etcd-20261130T120000Z-2.db.age", encrypted), "%s: %s", kind, name)
			names, err := store.List(t.Context())
			require.NoError(t, err)
			assert.Empty(t, names, "%s: %s", kind, name)
		}
	}
}

func TestPrune(t *testing.T) {
	for kind, store := range stores(t) {
		for _, name := range []string{"etcd-20261130T120000Z-7.db.age", "etcd-20261129T120000Z-5.db.age", "etcd-20261201T000000Z-9.db.age", "notes.txt", "etcd.db.age"} {
			require.NoError(t, store.Put(t.Context(), name, bytes.NewReader([]byte("x"))))
		}
		deleted, err := Prune(t.Context(), store, 3, "")
		require.NoError(t, err)
		assert.Empty(t, deleted, kind)
		// A clock that runs behind makes the last backup the oldest one.
		deleted, err = Prune(t.Context(), store, 1, "etcd-20261129T120000Z-5.db.age")
		require.NoError(t, err)
		assert.Equal(t, []string{"etcd-20261130T120000Z-7.db.age"}, deleted, kind)
		names, err := store.List(t.Context())
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"etcd-20261129T120000Z-5.db.age", "etcd-20261201T000000Z-9.db.age", "notes.txt", "etcd.db.age"}, names, kind)
	}
}

func TestFailures(t *testing.T) {
	_, err := Create(t.Context(), Etcd{}, folder(t.TempDir()), nil, noon)
	assert.ErrorContains(t, err, "no public key")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = Create(ctx, Etcd{Servers: []string{"http://127.0.0.1:1"}}, folder(t.TempDir()), []age.Recipient{newKey(t).Recipient()}, noon)
	assert.ErrorContains(t, err, "no member of etcd")

	s, s3 := startS3(t)
	store, err := NewStore("s3://backups", s3)
	require.NoError(t, err)
	s.refuse = "POST"
	assert.ErrorContains(t, store.Put(t.Context(), "x", bytes.NewReader(nil)), "Access Denied")
	s.refuse = "GET"
	_, err = List(t.Context(), store)
	assert.ErrorContains(t, err, "bucket backups")

	_, err = List(t.Context(), folder(filepath.Join(t.TempDir(), "missing")))
	assert.ErrorContains(t, err, "mount the volume")
	assert.Error(t, folder(filepath.Join(t.TempDir(), "missing")).Put(t.Context(), "x", bytes.NewReader(nil)))
	for _, location := range []string{"backups", "https://example.com", "s3://"} {
		_, err := NewStore(location, s3)
		assert.Error(t, err, location)
	}
	for _, endpoint := range []string{"", "s3.example.com", "https://example.com/bucket", "ftp://example.com"} {
		_, err := NewStore("s3://backups", S3{Endpoint: endpoint})
		assert.ErrorContains(t, err, "no endpoint", endpoint)
	}
	s3.CAFile = ""
	store, err = NewStore("s3://backups", s3)
	require.NoError(t, err)
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = store.List(ctx)
	assert.Error(t, err, "the authority is not trusted")
}

// The file of a writer that was killed is removed by the next one.
func TestPartialFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".partial-1"), nil, 0o600))
	require.NoError(t, folder(dir).Put(t.Context(), "x", bytes.NewReader(nil)))
	names, err := folder(dir).List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"x"}, names)
}
