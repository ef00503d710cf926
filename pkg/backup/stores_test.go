package backup

import (
	"bytes"
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

// saveWithoutEtcd saves to a store that fails before etcd is needed.
func saveWithoutEtcd(t *testing.T, store Store) error {
	t.Helper()
	_, _, err := Save(t.Context(), store, SaveOptions{Recipients: []age.Recipient{key(t).Recipient()}, Clock: testingclock.NewFakePassiveClock(now)})
	return err
}

func TestDirectoryFailures(t *testing.T) {
	missing := Directory(filepath.Join(t.TempDir(), "missing"))
	assert.ErrorContains(t, saveWithoutEtcd(t, missing), "mount the volume at "+string(missing))
	assert.ErrorContains(t, missing.Put(t.Context(), "x", strings.NewReader("")), "mount the volume")
	assert.NoDirExists(t, string(missing), "a volume that is not mounted is not replaced by a directory")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.ErrorContains(t, saveWithoutEtcd(t, Directory(file)), "correct --directory")
}

// A killed process leaves a part of a snapshot.
func TestParts(t *testing.T) {
	dir := t.TempDir()
	stale, fresh := filepath.Join(dir, ".macrack-1.part"), filepath.Join(dir, ".macrack-2.part")
	for _, path := range []string{stale, fresh} {
		require.NoError(t, os.WriteFile(path, []byte("half"), 0o600))
	}
	dayAgo := time.Now().Add(-25 * time.Hour)
	require.NoError(t, os.Chtimes(stale, dayAgo, dayAgo))
	store := Directory(dir)
	assert.Empty(t, listNames(t, store))
	s := Snapshot{Time: now}
	require.NoError(t, put(t.Context(), store, s.Name(), bytes.NewReader(content(1)), []age.Recipient{key(t).Recipient()}))
	assert.NoFileExists(t, stale)
	assert.FileExists(t, fresh, "it may be of a process that runs")
	assert.Equal(t, []string{s.Name()}, listNames(t, store))
}

func TestS3Failures(t *testing.T) {
	fake, store := newFakeS3(t)
	for code, want := range map[string]string{
		"SignatureDoesNotMatch":        "the server refuses the credentials (SignatureDoesNotMatch): refused by the test; replace AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
		"ExpiredToken":                 "replace AWS_ACCESS_KEY_ID",
		"AccessDenied":                 "permit s3:ListBucket",
		"AuthorizationHeaderMalformed": "correct --s3-region",
		"QuotaExceeded":                `bucket "snapshots": refused by the test (QuotaExceeded)`,
	} {
		fake.refuse = func(*http.Request) string { return code }
		err := saveWithoutEtcd(t, store)
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), secretKey)
	}

	fake.refuse = func(*http.Request) string { return "" }
	other := *store
	other.bucket = "missing"
	assert.ErrorContains(t, saveWithoutEtcd(t, &other), `bucket "missing": refused by the test; create the bucket, or correct --s3-bucket`)
}

func TestWrongCredentials(t *testing.T) {
	_, store := newFakeS3(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "wrong")
	assert.ErrorContains(t, saveWithoutEtcd(t, store), "replace AWS_ACCESS_KEY_ID")
}

// Each request of an upload can fail. No object appears, and its parts are deleted.
func TestFailedUploads(t *testing.T) {
	for name, fails := range map[string]func(*http.Request) bool{
		"first request": func(r *http.Request) bool { return r.URL.Query().Has("uploads") },
		"first part":    func(r *http.Request) bool { return r.URL.Query().Get("partNumber") == "1" },
		"second part":   func(r *http.Request) bool { return r.URL.Query().Get("partNumber") == "2" },
		"last request":  func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Query().Has("uploadId") },
	} {
		t.Run(name, func(t *testing.T) {
			fake, store := newFakeS3(t)
			fake.refuse = func(r *http.Request) string {
				if fails(r) {
					return "QuotaExceeded"
				}
				return ""
			}
			assert.ErrorContains(t, store.Put(t.Context(), "large", bytes.NewReader(make([]byte, partSize+1))), "QuotaExceeded")
			assert.Empty(t, fake.objects)
			assert.Empty(t, fake.uploads)
		})
	}

	// A killed process leaves its parts.
	fake, store := newFakeS3(t)
	fake.uploads["prod/"+Snapshot{Time: now}.Name()] = [][]byte{[]byte("half")}
	assert.Empty(t, listNames(t, store))
}

func TestDeletionNotPermitted(t *testing.T) {
	fake, store := newFakeS3(t)
	for i := range 2 {
		require.NoError(t, store.Put(t.Context(), Snapshot{Time: now.Add(time.Duration(i) * time.Hour)}.Name(), strings.NewReader("x")))
	}
	fake.refuse = func(r *http.Request) string {
		if r.Method == http.MethodDelete {
			return "AccessDenied"
		}
		return ""
	}
	all, err := List(t.Context(), store)
	require.NoError(t, err)
	_, err = prune(t.Context(), store, all, 1)
	assert.ErrorAs(t, err, new(Finding), "another attempt would save one more")
	assert.ErrorContains(t, err, "saved "+all[0].Name()+", but cannot delete "+all[1].Name())
	assert.ErrorContains(t, err, "set --keep=0")
}

func TestS3Options(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	_, err := NewS3(S3Options{Endpoint: "https://s3.example.com", Bucket: "b"})
	assert.ErrorContains(t, err, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "never anonymous")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	for _, endpoint := range []string{"", "s3.example.com", "ftp://s3.example.com", "https://s3.example.com/bucket", "https://user:secret@s3.example.com"} {
		_, err := NewS3(S3Options{Endpoint: endpoint, Bucket: "b"})
		assert.ErrorContains(t, err, "--s3-endpoint", endpoint)
		assert.NotContains(t, err.Error(), "secret@")
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, []byte("no certificate"), 0o600))
	_, err = NewS3(S3Options{Endpoint: "https://s3.example.com", Bucket: "b", CAFile: ca})
	assert.ErrorContains(t, err, "has no certificate")
}
