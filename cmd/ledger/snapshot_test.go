package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/test/cluster/etcd"
)

func TestSnapshots(t *testing.T) {
	member, err := etcd.Member{Dir: t.TempDir()}.Start()
	require.NoError(t, err)
	t.Cleanup(member.Close)
	servers := "http://" + member.Clients[0].Addr().String()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	identityFile := filepath.Join(t.TempDir(), "key.txt")
	require.NoError(t, os.WriteFile(identityFile, []byte("# created: today\n"+identity.String()+"\n"), 0o600))
	dir, output := t.TempDir(), filepath.Join(t.TempDir(), "macrack.db")
	save := []string{"snapshot", "save", "--directory=" + dir, "--etcd-servers=" + servers, "--recipient=" + identity.Recipient().String(), "--keep=1"}
	fetch := []string{"snapshot", "fetch", "--directory=" + dir, "--output=" + output}

	_, err = run("", append(fetch, "--identity="+identityFile)...)
	assert.ErrorContains(t, err, "no snapshot found; check --directory")
	out, err := run("", save...)
	require.NoError(t, err)
	const name = "macrack-20260915T120000Z-r1.db.zst.age"
	assert.Equal(t, "snapshot: saved="+name+" revision=1 deleted=0\n", out)
	out, err = run("", "snapshot", "list", "--directory="+dir)
	require.NoError(t, err)
	assert.Regexp(t, name+` +2026-09-15T12:00:00Z +1\n`, out)

	for _, args := range [][]string{{"--identity=" + identityFile}, {"--identity=-"}, {name, "--identity=" + identityFile}} {
		out, err = run(identity.String(), append(fetch, args...)...)
		require.NoError(t, err)
		assert.Equal(t, "snapshot: fetched="+name+" revision=1 output="+output+"\n", out)
		assert.FileExists(t, output)
		require.NoError(t, os.Remove(output))
	}

	other, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	_, err = run(other.String(), append(fetch, "--identity=-")...)
	assert.ErrorContains(t, err, "use the identity file of one of its recipients")
	assert.Equal(t, 2, exitCode(err))
	_, err = run(identity.Recipient().String(), append(fetch, "--identity=-")...)
	assert.ErrorContains(t, err, "use a file of age-keygen")
	_, err = run(identity.String(), append(fetch, "--identity=-", "macrack.db")...)
	assert.ErrorContains(t, err, "use a name from macrack-ledger snapshot list")
	left, err := os.ReadDir(filepath.Dir(output))
	require.NoError(t, err)
	assert.Empty(t, left, "no part of a snapshot")

	// A snapshot of an etcd that had more data: exit code 1 after the new snapshot was saved.
	lost := filepath.Join(dir, strings.Replace(name, "12000", "11000", 1))
	lost = strings.Replace(lost, "-r1.", "-r4711.", 1)
	require.NoError(t, os.Rename(filepath.Join(dir, name), lost))
	out, err = run("", save...)
	assert.ErrorContains(t, err, "etcd has lost data")
	assert.Equal(t, 1, exitCode(err))
	assert.Empty(t, out)
	assert.FileExists(t, lost)
	assert.FileExists(t, filepath.Join(dir, name))
}

func TestSnapshotFlags(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	save := []string{"snapshot", "save", "--etcd-servers=http://127.0.0.1:1"}
	for _, test := range []struct {
		args []string
		err  string
	}{
		{[]string{}, `required flag(s) "recipient" not set`},
		{[]string{"--recipient=" + identity.String()}, "use public keys of age-keygen"},
		{[]string{"--recipient="}, "use public keys of age-keygen"},
		{[]string{"--recipient=" + identity.Recipient().String()}, "use either --directory or --s3-bucket"},
		{[]string{"--recipient=" + identity.Recipient().String(), "--directory=x", "--s3-bucket=x"}, "use either --directory or --s3-bucket"},
		{[]string{"--recipient=" + identity.Recipient().String(), "--keep=-1"}, "--keep is -1"},
	} {
		_, err := run("", append(save, test.args...)...)
		assert.ErrorContains(t, err, test.err)
		assert.Equal(t, 2, exitCode(err))
		assert.NotContains(t, err.Error(), identity.String())
	}
}
