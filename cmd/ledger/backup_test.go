package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testingclock "k8s.io/utils/clock/testing"

	"macrack.io/macrack/test/registrytest"
)

func runBackup(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := newCommand(testingclock.NewFakePassiveClock(now))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"backup"}, args...))
	err := cmd.Execute()
	return strings.TrimSpace(out.String()), err
}

// The commands of the documentation, from a key to a snapshot for etcdutl.
func TestBackupCommands(t *testing.T) {
	etcd := registrytest.StartEtcd(t)
	_, err := etcd.Client.Put(t.Context(), "/registry/x", "the value of x")
	require.NoError(t, err)
	dir := t.TempDir()
	key, snapshot := filepath.Join(dir, "backup.key"), filepath.Join(dir, "backup.db")
	recipient, err := runBackup("keygen", "--output="+key)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(recipient, "age1"), recipient)
	info, err := os.Stat(key)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	_, err = runBackup("keygen", "--output="+key)
	assert.ErrorContains(t, err, "exists; remove it")

	store := "--store=" + t.TempDir()
	create := []string{"create", store, "--etcd-servers=" + etcd.Endpoint, "--recipient=" + recipient}
	out, err := runBackup(create...)
	require.NoError(t, err)
	assert.Equal(t, "etcd-20260915T120000Z-2.db.age written", out)
	_, err = etcd.Client.Put(t.Context(), "/registry/x", "the last value of x")
	require.NoError(t, err)
	out, err = runBackup(append(create, "--keep=1")...)
	require.NoError(t, err)
	assert.Equal(t, "etcd-20260915T120000Z-3.db.age written\netcd-20260915T120000Z-2.db.age deleted", out)
	out, err = runBackup("list", store)
	require.NoError(t, err)
	assert.Equal(t, "etcd-20260915T120000Z-3.db.age", out)

	fetch := []string{"fetch", store, "--identity=" + key, "--output=" + snapshot}
	_, err = runBackup(fetch...)
	require.NoError(t, err)
	content, err := os.ReadFile(snapshot)
	require.NoError(t, err)
	assert.Contains(t, string(content), "the last value of x")
	_, err = runBackup(fetch...)
	assert.ErrorContains(t, err, "exists; remove it")

	for message, args := range map[string][]string{
		"no store; set --store":              {"list"},
		"no public key":                      {"create", store},
		"--recipient":                        {"create", store, "--recipient=age1x"},
		"is negative":                        append(create, "--keep=-1"),
		"no private key":                     {"fetch", store},
		"no such file":                       {"fetch", store, "--identity=" + snapshot + ".missing"},
		"macrack-ledger backup keygen wrote": {"fetch", store, "--identity=" + snapshot},
		"there is no backup in":              {"fetch", "--store=" + dir, "--identity=" + key},
	} {
		_, err := runBackup(args...)
		assert.ErrorContains(t, err, message)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".partial-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
