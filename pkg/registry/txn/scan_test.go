package txn_test

import (
	"crypto/aes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"macrack.io/macrack/pkg/registry/txn"
)

// startPlain runs a server without rules, which encrypts what it stores.
func startPlain(t *testing.T) (*Server, *clientv3.Client) {
	t.Helper()
	endpoint, etcd := startEtcd(t, false)
	block, err := aes.NewCipher(make([]byte, 32))
	require.NoError(t, err)
	gcm, err := aestransformer.NewGCMTransformer(block)
	require.NoError(t, err)
	s, err := NewServer(config(endpoint, gcm), nil)
	require.NoError(t, err)
	t.Cleanup(s.Destroy)
	return s, etcd
}

// scanned returns the names and notes of the instances of each namespace, as a scan reads them.
func scanned(t *testing.T, scan *txn.Scan) map[string][]string {
	t.Helper()
	namespaces, err := scan.Namespaces(t.Context())
	require.NoError(t, err)
	all := map[string][]string{}
	for _, namespace := range namespaces {
		for value, err := range scan.Values(t.Context(), namespace, "", "") {
			require.NoError(t, err)
			i := &Instance{}
			require.NoError(t, scan.Decode(value, i))
			assert.Equal(t, namespace, i.Namespace)
			assert.NotEmpty(t, i.ResourceVersion)
			all[namespace] = append(all[namespace], i.Name+" "+i.Note)
		}
	}
	return all
}

// A scan reads what there was when it began, in order and of each namespace, whether etcd streams
// or not.
func TestScan(t *testing.T) {
	s, _ := startPlain(t)
	scan, err := s.Backend.Scan(t.Context(), Instances)
	require.NoError(t, err)
	assert.Empty(t, scanned(t, scan))

	want := map[string][]string{}
	for _, namespace := range []string{"a", "a-b", "ab", "b"} {
		for n := range 7 { // more than pages below have
			i := instance(fmt.Sprintf("i-%d", n), "")
			i.Note = "then"
			mustCreate(t, requestContext(namespace), s.Instances, i)
			want[namespace] = append(want[namespace], i.Name+" then")
		}
	}
	scan, err = s.Backend.Scan(t.Context(), Instances)
	require.NoError(t, err)
	_, err = change(requestContext("a"), s.Instances, "i-3", func(i *Instance) { i.Note = "now" })
	require.NoError(t, err)
	require.NoError(t, remove(requestContext("ab"), s.Instances, "i-0"))
	mustCreate(t, requestContext("later"), s.Instances, instance("i", ""))
	assert.Equal(t, want, scanned(t, scan))
	scan.Unstreamed(3)
	assert.Equal(t, want, scanned(t, scan), "in pages")

	var part []string
	for value, err := range scan.Values(t.Context(), "a", "i-2", "i-6") {
		require.NoError(t, err)
		part = append(part, value.Key.Name)
	}
	assert.Equal(t, []string{"i-2", "i-3", "i-4", "i-5"}, part)
}

func TestScanOfChanges(t *testing.T) {
	s, _ := startPlain(t)
	for n := range 7 {
		mustCreate(t, requestContext("a"), s.Instances, instance(fmt.Sprintf("i-%d", n), ""))
	}
	mustCreate(t, requestContext("a-b"), s.Instances, instance("i-0", ""))
	first, err := s.Backend.Scan(t.Context(), Instances)
	require.NoError(t, err)
	since, history := first.Revision()
	count, err := first.Count(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 8, count)

	_, err = change(requestContext("a"), s.Instances, "i-3", func(i *Instance) { i.Note = "now" })
	require.NoError(t, err)
	require.NoError(t, remove(requestContext("a"), s.Instances, "i-5"))
	mustCreate(t, requestContext("a"), s.Instances, instance("i-7", ""))
	scan, err := s.Backend.Scan(t.Context(), Instances)
	require.NoError(t, err)
	revision, same := scan.Revision()
	assert.Greater(t, revision, since)
	assert.Equal(t, history, same)
	require.NoError(t, remove(requestContext("a"), s.Instances, "i-0")) // after the scan began

	for _, test := range []struct {
		namespace, from, to string
		changed             []string
		others              int64
	}{
		{"a", "", "", []string{"i-3", "i-7"}, 5},
		{"a", "i-2", "i-4", []string{"i-3"}, 1},
		{"a", "i-4", "", []string{"i-7"}, 2},
		{"a-b", "", "", nil, 1},
		{"b", "", "", nil, 0},
	} {
		changed, others, err := scan.Changes(t.Context(), test.namespace, test.from, test.to, since)
		require.NoError(t, err)
		var names []string
		for _, key := range changed {
			assert.Equal(t, test.namespace, key.Namespace)
			names = append(names, key.Name)
		}
		assert.Equal(t, test.changed, names)
		assert.Equal(t, test.others, others)
	}

	keys := []txn.ObjectKey{{Namespace: "a", Name: "i-7"}, {Namespace: "a", Name: "missing"}, {Namespace: "a-b", Name: "i-0"}}
	for range 150 { // more than one transaction reads
		keys = append(keys, txn.ObjectKey{Namespace: "a", Name: "i-0"})
	}
	var read []string
	for value, err := range scan.Get(t.Context(), keys) {
		require.NoError(t, err)
		i := &Instance{}
		require.NoError(t, scan.Decode(value, i))
		read = append(read, i.Namespace+"/"+i.Name)
	}
	require.Len(t, read, 152)
	assert.Equal(t, []string{"a/i-7", "a-b/i-0", "a/i-0"}, read[:3])
}

// A new connection can be to a restored etcd.
func TestScanEndsWithItsConnection(t *testing.T) {
	_, p, s := proxied(t)
	scan, err := s.Backend.Scan(t.Context(), Instances)
	require.NoError(t, err)
	_, err = scan.Count(t.Context())
	require.NoError(t, err)
	assert.True(t, scan.Continues())
	p.cut()
	require.Eventually(t, func() bool {
		_, err := scan.Count(t.Context())
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	assert.False(t, scan.Continues())
}

// TestScanEnds checks that a failed read is an error and leaves no stream open.
func TestScanEnds(t *testing.T) {
	s, etcd := startPlain(t)
	for n := range 2000 {
		_, err := etcd.Put(t.Context(), fmt.Sprintf("/registry/%s/%s/a/r-%d", Records.Group, Records.Resource, n), "not encrypted")
		require.NoError(t, err)
	}
	scan, err := s.Backend.Scan(t.Context(), Records)
	require.NoError(t, err)
	for range 20 {
		read := 0
		for _, err := range scan.Values(t.Context(), "a", "", "") {
			read++
			assert.ErrorContains(t, err, "/a/r-0")
		}
		assert.Equal(t, 1, read, "nothing comes after an error")
		namespaces, err := scan.Namespaces(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"a"}, namespaces)
	}
	require.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), ".GetStream")
	}, 10*time.Second, 10*time.Millisecond)

	other := Records
	other.Resource = "others"
	_, err = s.Backend.Scan(t.Context(), other)
	assert.ErrorContains(t, err, "is not a resource of the backend")
}
