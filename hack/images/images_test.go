package main

import (
	"archive/tar"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"

	"macrack.io/macrack/pkg/version"
)

// fixture returns options, and a Go binary: this test.
func fixture(t *testing.T) (o *options, binary string) {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "LICENSE"), []byte("a licence"), 0o600))
	binary, err := os.Executable()
	require.NoError(t, err)
	return &options{
		root: root, dir: filepath.Join(root, "images"), commit: strings.Repeat("a", 40), created: time.Unix(1_800_000_000, 0).UTC(), out: io.Discard,
	}, binary
}

func digest(t *testing.T, image interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	hash, err := image.Digest()
	require.NoError(t, err)
	return hash
}

func TestImage(t *testing.T) {
	o, binary := fixture(t)
	platform := &v1.Platform{OS: "linux", Architecture: "arm64"}
	image, err := o.platformImage(products[0], platform, binary)
	require.NoError(t, err)
	again, err := o.platformImage(products[0], platform, binary)
	require.NoError(t, err)
	assert.Equal(t, digest(t, image), digest(t, again), "the same digest twice")

	config, err := image.ConfigFile()
	require.NoError(t, err)
	assert.Equal(t, "arm64", config.Architecture)
	assert.Equal(t, "65532:65532", config.Config.User)
	assert.Equal(t, []string{"/macrack-apiserver"}, config.Config.Entrypoint)
	assert.Equal(t, o.commit, config.Config.Labels["org.opencontainers.image.revision"])
	for _, label := range []string{"version", "source", "licenses", "title", "description"} {
		assert.NotEmpty(t, config.Config.Labels["org.opencontainers.image."+label], label)
	}

	modes := map[string]int64{}
	for r := tar.NewReader(mutate.Extract(image)); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		modes[header.Name] = header.Mode
	}
	assert.Equal(t, map[string]int64{"macrack-apiserver": 0o555, "LICENSE": 0o444}, modes)
}

func TestSBOM(t *testing.T) {
	o, binary := fixture(t)
	data, err := sbom("macrack-test", binary, o.commit, o.created)
	require.NoError(t, err)
	again, err := sbom("macrack-test", binary, o.commit, o.created)
	require.NoError(t, err)
	assert.Equal(t, string(data), string(again))
	var doc spdxDocument
	require.NoError(t, json.Unmarshal(data, &doc))
	assert.Equal(t, "SPDX-2.3", doc.SPDXVersion)
	names, ids := map[string]string{}, map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range doc.Packages {
		names[p.Name] = p.VersionInfo
		assert.False(t, ids[p.SPDXID], "%s is not unique", p.SPDXID)
		ids[p.SPDXID] = true
	}
	assert.Equal(t, version.Version+"+"+o.commit, names["macrack-test"])
	assert.NotEmpty(t, names["stdlib"])
	assert.Contains(t, names, "github.com/spf13/cobra")
	for _, r := range doc.Relationships {
		assert.True(t, ids[r.Element] && ids[r.Related], r)
	}
}

// A pushed image is the image of the layout, and its SBOM refers to it.
func TestPush(t *testing.T) {
	o, binary := fixture(t)
	server := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)), ggcr.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	ref := strings.TrimPrefix(server.URL, "http://") + "/macrack/macrack-apiserver:v1"
	image, err := o.platformImage(products[0], &v1.Platform{OS: "linux", Architecture: "amd64"}, binary)
	require.NoError(t, err)
	artifact, err := o.sbomArtifact(products[0], binary, image)
	require.NoError(t, err)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image})
	local, err := layout.Write(o.dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, local.AppendIndex(index))
	require.NoError(t, local.AppendImage(artifact))

	assert.ErrorContains(t, o.push(t.Context(), ref, index, nil), "PLAIN_HTTP=1")
	o.plainHTTP = true
	require.NoError(t, o.push(t.Context(), ref, index, []v1.Image{artifact}))

	repository, err := remote.NewRepository(ref)
	require.NoError(t, err)
	repository.PlainHTTP = true
	pushed, err := repository.Resolve(t.Context(), "v1")
	require.NoError(t, err)
	assert.Equal(t, digest(t, index).String(), pushed.Digest.String())
	subject, err := repository.Resolve(t.Context(), digest(t, image).String())
	require.NoError(t, err)
	referrers, err := registry.Referrers(t.Context(), repository, ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}, "")
	require.NoError(t, err)
	require.Len(t, referrers, 1)
	assert.Equal(t, digest(t, artifact).String(), referrers[0].Digest.String())
	assert.Equal(t, "application/spdx+json", referrers[0].ArtifactType)
}

// Signing needs a registry, and signs the pushed digest.
func TestSign(t *testing.T) {
	o, _ := fixture(t)
	o.cosignKey = "cosign.key"
	assert.ErrorContains(t, o.run(t.Context()), "IMAGES=registry/prefix")

	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "cosign"), []byte("#!/bin/sh\necho \"$@\" >"+bin+"/args\n"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	hash, err := v1.NewHash("sha256:" + strings.Repeat("b", 64))
	require.NoError(t, err)
	require.NoError(t, o.sign(t.Context(), "registry.example.com:5000/m/macrack-ledger:"+version.Version, hash))
	args, err := os.ReadFile(filepath.Join(bin, "args"))
	require.NoError(t, err)
	assert.Equal(t, "sign --yes --recursive --key cosign.key registry.example.com:5000/m/macrack-ledger@"+hash.String()+"\n", string(args))

	o.cosignKey = ""
	require.NoError(t, os.Remove(filepath.Join(bin, "args")))
	require.NoError(t, o.sign(t.Context(), "r/m:"+version.Version, hash))
	assert.NoFileExists(t, filepath.Join(bin, "args"))
}
