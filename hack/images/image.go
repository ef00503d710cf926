package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"macrack.io/macrack/pkg/version"
	"macrack.io/macrack/test/cluster/build"
)

const (
	// user has no account and no privileges. The manifests run the pods as the same user.
	user     = "65532:65532"
	spdxType = types.MediaType("application/spdx+json")
)

// image builds a program for all platforms. It returns their image index, and the SBOM of each
// image as an artifact that refers to it.
func (o *options) image(ctx context.Context, p product) (v1.ImageIndex, []v1.Image, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var sboms []v1.Image
	for _, text := range o.platforms {
		platform, err := v1.ParsePlatform(text)
		if err != nil {
			return nil, nil, err
		}
		binary := filepath.Join(o.root, ".dev", "static", platform.Architecture, p.title)
		if err := o.compile(ctx, p, platform, binary); err != nil {
			return nil, nil, err
		}
		image, err := o.platformImage(p, platform, binary)
		if err != nil {
			return nil, nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
		sbom, err := o.sbomArtifact(p, binary, image)
		if err != nil {
			return nil, nil, err
		}
		sboms = append(sboms, sbom)
	}
	annotated := mutate.Annotations(index, o.labels(p)).(v1.ImageIndex)
	return annotated, sboms, nil
}

// compile builds a static binary without paths of this machine.
func (o *options) compile(ctx context.Context, p product, platform *v1.Platform, binary string) error {
	fmt.Fprintf(os.Stderr, "building %s for %s\n", p.title, platform)
	env := []string{"CGO_ENABLED=0", "GOOS=" + platform.OS, "GOARCH=" + platform.Architecture, "GOFLAGS="}
	const module = "macrack.io/macrack/pkg/version"
	ldflags := fmt.Sprintf("-s -w -buildid= -X %s.Version=%s -X %s.Commit=%s", module, version.Version, module, o.commit)
	if p.module != "" { // it cannot import the version of the root module
		ldflags += fmt.Sprintf(" -X main.version=%s -X main.commit=%s", version.Version, o.commit)
	}
	return build.Release(ctx, binary, p.module, "./cmd/"+p.folder, env, "-trimpath", "-ldflags", ldflags)
}

func (o *options) platformImage(p product, platform *v1.Platform, binary string) (v1.Image, error) {
	layer, err := o.layer(map[string]string{p.title: binary, "LICENSE": filepath.Join(o.root, "LICENSE")}, p.title, "LICENSE")
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "make images"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{Entrypoint: []string{"/" + p.title}, User: user, WorkingDir: "/", Labels: o.labels(p)}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, o.labels(p)).(v1.Image), nil
}

func (o *options) labels(p product) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       p.title,
		"org.opencontainers.image.description": p.description,
		"org.opencontainers.image.version":     version.Version,
		"org.opencontainers.image.revision":    o.commit,
		"org.opencontainers.image.source":      "https://macrack.io/macrack",
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
}

// layer returns a layer of files in the root directory, in the given order.
func (o *options) layer(paths map[string]string, names ...string) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		data, err := os.ReadFile(paths[name])
		if err != nil {
			return nil, err
		}
		mode := int64(0o444)
		if strings.HasPrefix(name, "macrack-") {
			mode = 0o555
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), ModTime: o.created}); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// sbomArtifact returns the SBOM of a binary as an artifact whose subject is the image.
func (o *options) sbomArtifact(p product, binary string, image v1.Image) (v1.Image, error) {
	sbom, err := sbom(p.title, binary, o.commit, o.created)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), spdxType)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(sbom, spdxType))
	if err != nil {
		return nil, err
	}
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}
