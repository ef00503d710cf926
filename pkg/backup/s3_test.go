package backup

import (
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
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeS3 is a bucket named backups behind the requests of S3 that an upload in parts, a download, a
// list and a deletion need. As in S3, an object appears when its upload is completed.
type fakeS3 struct {
	*testing.T
	mu      sync.Mutex
	objects map[string][]byte
	uploads map[string]map[int][]byte
	refuse  string // the method of requests that are refused
}

// startS3 starts a fakeS3, and returns it and its description.
func startS3(t *testing.T) (*fakeS3, S3) {
	s := &fakeS3{T: t, objects: map[string][]byte{}, uploads: map[string]map[int][]byte{}}
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return s, S3{Endpoint: server.URL, Region: "lab-1", CAFile: ca}
}

func (s *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	assert.NoError(s, err)
	assert.Contains(s, r.Header.Get("Authorization"), "Credential=key/")
	key, ok := strings.CutPrefix(r.URL.Path, "/backups/")
	query := r.URL.Query()
	switch {
	case !ok:
		http.Error(w, "no such bucket", http.StatusNotFound)
	case r.Method == s.refuse:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>`)
	case key == "":
		s.list(w, query.Get("prefix"))
	case r.Method == http.MethodPost && query.Has("uploads"):
		s.uploads[key] = map[int][]byte{}
		fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>`)
	case r.Method == http.MethodPut:
		part, err := strconv.Atoi(query.Get("partNumber"))
		assert.NoError(s, err)
		s.uploads[key][part] = body
		w.Header().Set("ETag", fmt.Sprintf("%q", "part"))
	case r.Method == http.MethodPost:
		for _, part := range slices.Sorted(maps.Keys(s.uploads[key])) {
			s.objects[key] = append(s.objects[key], s.uploads[key][part]...)
		}
		delete(s.uploads, key)
		fmt.Fprint(w, `<CompleteMultipartUploadResult><Bucket>backups</Bucket><Key>x</Key><ETag>"object"</ETag></CompleteMultipartUploadResult>`)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		delete(s.uploads, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.get(w, r, key)
	}
}

func (s *fakeS3) get(w http.ResponseWriter, r *http.Request, key string) {
	object, ok := s.objects[key]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>`)
		return
	}
	w.Header().Set("ETag", `"object"`)
	w.Header().Set("Last-Modified", "Mon, 30 Nov 2026 12:00:00 GMT")
	w.Header().Set("Content-Length", strconv.Itoa(len(object)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(object)
	}
}

func (s *fakeS3) list(w http.ResponseWriter, prefix string) {
	type content struct{ Key string }
	result := struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []content
	}{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, prefix) {
			result.Contents = append(result.Contents, content{key})
		}
	}
	assert.NoError(s, xml.NewEncoder(w).Encode(result))
}
