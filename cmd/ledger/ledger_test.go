package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/ledger"
)

var now = time.Date(2026, 9, 15, 12, 0, 0, 0, time.UTC)

// server lists its records as the API does: namespace by namespace, in pages.
type server struct {
	heads   map[string][]byte
	records []v1alpha1.AuditRecord
	fail    error // of all pages but the first
}

func (s *server) GetKey(_ context.Context, _, id string) ([]byte, bool, error) {
	value, ok := s.heads[id]
	return value, ok, nil
}

func (s *server) PutKey(_, id string, value []byte) error {
	s.heads[id] = value
	return nil
}

func (s *server) Create(_ context.Context, _ schema.GroupResource, obj runtime.Object) error {
	var external v1alpha1.AuditRecord
	err := v1alpha1.Convert_rack_AuditRecord_To_v1alpha1_AuditRecord(obj.(*rack.AuditRecord), &external, nil)
	s.records = append(s.records, external)
	return err
}

func (s *server) list(_ context.Context, options metav1.ListOptions) (*v1alpha1.AuditRecordList, error) {
	slices.SortFunc(s.records, func(a, b v1alpha1.AuditRecord) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	from := 0
	if options.Continue != "" {
		if s.fail != nil {
			return nil, s.fail
		}
		from, _ = strconv.Atoi(options.Continue)
	}
	to := min(from+int(options.Limit), len(s.records))
	page := &v1alpha1.AuditRecordList{Items: s.records[from:to]}
	if to < len(s.records) {
		page.Continue = strconv.Itoa(to)
	}
	return page, nil
}

// newServer has 1,200 records of two Macs, which change between two tenants.
func newServer(t *testing.T) *server {
	s := &server{heads: map[string][]byte{}}
	clock := testingclock.NewFakePassiveClock(now.Add(-80 * 24 * time.Hour))
	for i := range 600 {
		for mac := range 2 {
			node := &rack.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("mac-", mac)}, Spec: rack.MacNodeSpec{SerialNumber: fmt.Sprint("C07MAC", mac)}}
			node.Status.LeaseRef = &rack.LeaseReference{Namespace: []string{"acme", "globex"}[(i/10+mac)%2], Name: "lease"}
			node.Status.Quarantine = &rack.Quarantine{Reason: "KernelQuotaStuck", Message: "=1+1"}
			require.NoError(t, ledger.Append(context.Background(), s, clock, ledger.NewNodeQuarantined(node)))
		}
		clock.SetTime(clock.Now().Add(time.Hour))
	}
	return s
}

func export(t *testing.T, s *server, format string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ledger."+format)
	var stderr bytes.Buffer
	options := &exportOptions{format: format, output: path}
	require.NoError(t, options.run(context.Background(), s.list, nil, &stderr))
	assert.Equal(t, "1200 records\n", stderr.String())
	return path
}

// run runs the command and returns its output.
func run(stdin string, args ...string) (string, error) {
	cmd := newCommand(testingclock.NewFakePassiveClock(now))
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func TestExportVerifyReport(t *testing.T) {
	s := newServer(t)
	head, err := ledger.DecodeHead(s.heads["c07mac1"])
	require.NoError(t, err)
	for _, format := range []string{"jsonl", "csv"} {
		t.Run(format, func(t *testing.T) {
			path := export(t, s, format)
			out, err := run("", "verify", path)
			require.NoError(t, err)
			assert.Contains(t, out, "ledger: records=1200 chains=2 broken=0")
			assert.Regexp(t, `c07mac1 +600 +1 +600 +2026-06-27T12:00:00Z +2026-07-22T11:00:00Z +`+head.Hash, out)

			out, err = run("", "report", path)
			require.NoError(t, err)
			assert.Contains(t, out, "kind: ComplianceReport")
			assert.Contains(t, out, "  name: 90d")
			assert.Contains(t, out, "  verdict: Compliant")
			assert.Contains(t, out, "  records: 1200")

			out, err = run("", "report", path, "--window", "2026-06-01..2026-06-28", "--format", "json")
			require.NoError(t, err)
			assert.Contains(t, out, `"records": 24`)
			assert.Contains(t, out, `"coveredSince": "2026-06-27T12:00:00Z"`)

			content, err := os.ReadFile(path)
			require.NoError(t, err)
			edited := strings.Replace(string(content), "KernelQuotaStuck", "SerialMismatch", 1)
			out, err = run(edited, "verify", "-")
			assert.EqualError(t, err, "the ledger is broken")
			assert.Contains(t, out, "broken: acme/c07mac0-000000000001 was edited")
			assert.Contains(t, out, "ledger: records=1200 chains=2 broken=1")
			out, err = run(edited, "report", "-")
			assert.EqualError(t, err, "the verdict is Incomplete")
			assert.Contains(t, out, "verdict: Incomplete")
		})
	}
}

func TestExportFromAServer(t *testing.T) {
	s := newServer(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		assert.Equal(t, "/apis/rack.macrack.io/v1alpha1/auditrecords", req.URL.Path)
		limit, _ := strconv.Atoi(req.URL.Query().Get("limit"))
		page, err := s.list(req.Context(), metav1.ListOptions{Limit: int64(limit), Continue: req.URL.Query().Get("continue")})
		assert.NoError(t, err)
		page.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("AuditRecordList"))
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(page))
	}))
	defer api.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"server": {Server: api.URL}},
		Contexts: map[string]*clientcmdapi.Context{"auditor": {Cluster: "server"}},
	}, kubeconfig))

	out, err := run("", "export", "--kubeconfig", kubeconfig, "--context", "auditor")
	require.NoError(t, err)
	assert.Equal(t, 1200, strings.Count(out, "\n"))
	out, err = run(out, "verify", "-")
	require.NoError(t, err)
	assert.Contains(t, out, "ledger: records=1200 chains=2 broken=0")
}

func TestExportIsInOrder(t *testing.T) {
	s := newServer(t)
	var listed bytes.Buffer // as from kubectl get -A: namespace by namespace
	_, err := ledger.Export(context.Background(), records(s.list), &listed, ledger.JSONLines)
	require.NoError(t, err)
	out, err := run(listed.String(), "verify", "-")
	assert.EqualError(t, err, "the file is not an export of a ledger")
	assert.Equal(t, 1, exitCode(err))
	assert.Regexp(t, `^malformed: line \d+ is out of order: record .*; names must increase\nledger: not verified\n$`, out)
	_, err = run("", "verify", export(t, s, "jsonl"))
	require.NoError(t, err)
}

func TestEmptyFilesVerifyNothing(t *testing.T) {
	var header bytes.Buffer
	_, err := ledger.Export(context.Background(), ledger.Records(), &header, ledger.CSV)
	require.NoError(t, err)
	heads := filepath.Join(t.TempDir(), "heads.txt")
	for _, file := range []string{"", header.String()} {
		out, err := run(file, "verify", "-", "--heads", heads)
		assert.EqualError(t, err, "the file has no records; nothing was verified")
		assert.Equal(t, 1, exitCode(err))
		assert.Contains(t, out, "ledger: records=0 chains=0 broken=0\n")
		assert.NoFileExists(t, heads)
		_, err = run(file, "report", "-")
		assert.EqualError(t, err, "the file has no records to report on")
	}
}

func TestOutputIsPrintable(t *testing.T) {
	s := newServer(t)
	content, err := os.ReadFile(export(t, s, "jsonl"))
	require.NoError(t, err)
	edited := strings.Replace(string(content), `"namespace":"acme"`, `"namespace":"a\u001b[2J`+"\u202e"+`"`, 1)
	out, err := run(edited, "verify", "-")
	assert.Error(t, err)
	assert.Contains(t, out, `broken: a\x1b[2J\u202e/c07mac0-000000000001 is misplaced`)
}

func TestExportLeavesNoHalfFile(t *testing.T) {
	s := newServer(t)
	s.fail = errors.New("connection refused")
	dir := t.TempDir()
	options := &exportOptions{format: "jsonl", output: filepath.Join(dir, "ledger.jsonl")}
	assert.ErrorIs(t, options.run(context.Background(), s.list, nil, &bytes.Buffer{}), s.fail)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestRefusals(t *testing.T) {
	_, err := run("", "report", "ledger.jsonl", "--window", "fortnight")
	assert.ErrorContains(t, err, "a report is named after its window")
	_, err = run("", "report", "ledger.jsonl", "--format", "xml")
	assert.ErrorContains(t, err, `unknown format "xml"`)
	_, err = run("", "verify", filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = run("hello\n", "verify", "-")
	assert.EqualError(t, err, "the file is not an export of a ledger")
	assert.Equal(t, 1, exitCode(err))
	_, err = run("", "verify", "ledger.jsonl", "--retention", "24h")
	assert.ErrorContains(t, err, "use at least 2160h0m0s")
	assert.Equal(t, 2, exitCode(err))
	_, err = run("", "verify", "ledger.jsonl", "--expect", filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Equal(t, 2, exitCode(err))
	_, err = run("", "export", "--kubeconfig", filepath.Join(t.TempDir(), "none"))
	assert.Error(t, err)
}
