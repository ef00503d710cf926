package backup

import (
	"cmp"
	"crypto/md5"
	"encoding/base64"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeS3 is an S3 server with one bucket, which lists two objects in a page.
type fakeS3 struct {
	mu      sync.Mutex
	objects map[string][]byte
	uploads map[string][][]byte // the parts of the uploads that are not complete
	// refuse returns the code of an error, such as AccessDenied, or "".
	refuse func(r *http.Request) string
}

const accessKey, secretKey = "the-access-key", "the-secret-key"

// newFakeS3 returns the server, and a store in the folder prod of its bucket.
func newFakeS3(t *testing.T) (*fakeS3, *S3) {
	t.Helper()
	fake := &fakeS3{objects: map[string][]byte{}, uploads: map[string][][]byte{}, refuse: func(*http.Request) string { return "" }}
	server := httptest.NewTLSServer(fake)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	store, err := NewS3(S3Options{Endpoint: server.URL, Bucket: "snapshots", Prefix: "/prod", Region: "eu-central-1", CAFile: ca})
	require.NoError(t, err)
	return fake, store
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	known := strings.Contains(r.Header.Get("Authorization"), "Credential="+accessKey+"/") && strings.Contains(r.Header.Get("Authorization"), "/eu-central-1/s3/")
	sum := md5.Sum(body)
	code := f.refuse(r)
	switch {
	case !known:
		code = "InvalidAccessKeyId"
	case bucket != "snapshots":
		code = "NoSuchBucket"
	case r.Method == http.MethodPut && r.Header.Get("Content-MD5") != base64.StdEncoding.EncodeToString(sum[:]):
		code = "BadDigest"
	}
	if code != "" {
		w.WriteHeader(http.StatusForbidden)
		reply(w, xmlError{Code: code, Message: "refused by the test"})
		return
	}
	f.serve(w, r, key, body)
}

func (f *fakeS3) serve(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	query := r.URL.Query()
	upload := query.Get("uploadId")
	switch {
	case r.Method == http.MethodGet && query.Get("list-type") == "2":
		reply(w, f.list(query.Get("prefix"), query.Get("continuation-token")))
	case r.Method == http.MethodGet:
		content, found := f.objects[key]
		if !found {
			w.WriteHeader(http.StatusNotFound)
			reply(w, xmlError{Code: "NoSuchKey", Message: "no such key"})
			return
		}
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Write(content)
	case r.Method == http.MethodPost && upload == "":
		f.uploads[key] = nil
		reply(w, initiated{UploadID: key})
	case r.Method == http.MethodPut:
		f.uploads[upload] = append(f.uploads[upload], body)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum(body)))
	case r.Method == http.MethodPost:
		f.objects[key] = slices.Concat(f.uploads[upload]...)
		delete(f.uploads, upload)
		reply(w, completed{Bucket: "snapshots", Key: key, ETag: `"e"`})
	case r.Method == http.MethodDelete && upload != "":
		delete(f.uploads, upload)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fakeS3) list(prefix, after string) (page listed) {
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		if !strings.HasPrefix(key, prefix) || cmp.Compare(key, after) <= 0 {
			continue
		}
		if len(page.Contents) == 2 {
			page.IsTruncated, page.NextContinuationToken = true, page.Contents[1].Key
			break
		}
		page.Contents = append(page.Contents, listedObject{Key: key})
	}
	return page
}

type xmlError struct {
	XMLName       xml.Name `xml:"Error"`
	Code, Message string
}

type initiated struct {
	XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
	UploadID string   `xml:"UploadId"`
}

type completed struct {
	XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
	Bucket, Key, ETag string
}

type listedObject struct{ Key string }

type listed struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	IsTruncated           bool
	NextContinuationToken string
	Contents              []listedObject
}

func reply(w io.Writer, value any) {
	_ = xml.NewEncoder(w).Encode(value)
}
