package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/test/cluster/build"
)

const script = "#!/bin/sh\necho macrack-ledger version v1.2.3 '(commit 45cd7dd0)'\n"

// writeRelease writes a release with one archive, whose files are given.
func writeRelease(t *testing.T, archive string, files map[string]string) *release {
	t.Helper()
	dir := t.TempDir()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	for name, content := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}))
		_, err := w.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, zipped.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, archive), b.Bytes(), 0o644))
	sums := fmt.Sprintf("%x  %s\n", sha256.Sum256(b.Bytes()), archive)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "macrack_sha256sums.txt"), []byte(sums), 0o644))
	return &release{dir: dir, version: "v1.2.3", commit: "45cd7dd0"}
}

func TestCheck(t *testing.T) {
	native := "macrack-tools_1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	foreign := "macrack-tools_1.2.3_darwin_other.tar.gz"
	files := func(binary string) map[string]string {
		return map[string]string{"LICENSE": "a licence", "macrack-ledger": binary}
	}
	good := writeRelease(t, native, files(script))
	_, err := good.check()
	require.NoError(t, err)
	assert.Equal(t, 1, good.archives)
	assert.Equal(t, 1, good.binaries)
	_, err = writeRelease(t, foreign, files("a binary with v1.2.3 and 45cd7dd0")).check()
	require.NoError(t, err)
	_, err = writeRelease(t, foreign, map[string]string{"LICENSE": "a licence", "kubectl-macrack": "v1.2.3"}).check()
	assert.ErrorContains(t, err, "does not contain 45cd7dd0", "the plugin is checked too")

	for want, r := range map[string]*release{
		"--version prints":             writeRelease(t, native, files(strings.ReplaceAll(script, "v1.2.3", "v1.2.2"))),
		"does not contain 45cd7dd0":    writeRelease(t, foreign, files("a binary with v1.2.3")),
		"has no LICENSE":               writeRelease(t, foreign, map[string]string{"macrack-ledger": "v1.2.3 45cd7dd0"}),
		"no archive has a binary":      writeRelease(t, foreign, map[string]string{"LICENSE": "a licence"}),
		"run make release-snapshot":    {dir: t.TempDir()},
		"extra.tar.gz has no checksum": with(t, writeRelease(t, native, files(script)), "extra.tar.gz", ""),
		"its checksum is":              with(t, writeRelease(t, native, files(script)), native, "changed"),
	} {
		_, err := r.check()
		assert.ErrorContains(t, err, want)
	}
}

func with(t *testing.T, r *release, file, content string) *release {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, file), []byte(content), 0o644))
	return r
}

// Every program is in a release, except for the runner of VMs, whose build needs a Mac.
func TestConfig(t *testing.T) {
	root, err := build.Root()
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	require.NoError(t, err)
	var config struct {
		Builds []struct {
			ID, Main, Binary string
			Ldflags          []string
		} `json:"builds"`
		Archives []struct {
			IDs []string `json:"ids"`
		} `json:"archives"`
	}
	require.NoError(t, yaml.Unmarshal(data, &config))
	built, archived := map[string]bool{"vm": true}, map[string]bool{}
	for _, archive := range config.Archives {
		for _, id := range archive.IDs {
			archived[id] = true
		}
	}
	for _, b := range config.Builds {
		folder := strings.TrimPrefix(b.Main, "./cmd/")
		built[folder] = true
		assert.Equal(t, build.Programs[folder], b.Binary, b.ID)
		assert.True(t, archived[b.ID], "%s is in no archive", b.ID)
		for _, name := range []string{"Version", "Commit"} {
			assert.Contains(t, strings.Join(b.Ldflags, " "), "macrack.io/macrack/pkg/version."+name+"=", b.ID)
		}
	}
	for folder := range build.Programs {
		assert.True(t, built[folder], "%s is in no release", folder)
	}
}
