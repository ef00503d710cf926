package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/pki"
)

const (
	// mirror is where Nodes pull the images of pods.
	mirror = controlPlaneAddress + ":5000"
	// macRegistry has the images of macOS. Only Macs trust its certificate.
	macRegistry = controlPlaneAddress + ":5443"
)

// pushSystemImages pushes the images that other clusters pull from registry.k8s.io.
func (p *plan) pushSystemImages(ctx context.Context) error {
	dir := filepath.Join(p.Dir, "system-images")
	images, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, title := range []string{"pause", "coredns", "etcd"} {
		image, err := programImage(filepath.Join(p.nodeDir(), title), "/usr/local/bin/"+title)
		if err != nil {
			return err
		}
		if err := images.AppendImage(image); err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		local, err := oci.NewFromFS(ctx, os.DirFS(dir))
		if err != nil {
			return err
		}
		repository, err := remote.NewRepository(p.systemImage(title))
		if err != nil {
			return err
		}
		repository.PlainHTTP = true
		if _, err := oras.Copy(ctx, local, digest.String(), repository, repository.Reference.Reference, oras.DefaultCopyOptions); err != nil {
			return fmt.Errorf("pushing the image of %s: %w", title, err)
		}
	}
	return nil
}

func (p *plan) systemImage(title string) string {
	return fmt.Sprintf("%s/system/%s:1", p.Registry, title)
}

// programImage returns an image with a static program only.
func programImage(file, path string) (v1.Image, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: path[1:], Mode: 0o755, Size: int64(len(data))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: []string{path}, Env: []string{"PATH=" + filepath.Dir(path)}, User: "65532:65532"}
	return mutate.ConfigFile(image, config)
}

// serveRegistries serves both registries until ctx ends, or calls failed. It returns the file of
// the authority of the second one.
func (p *plan) serveRegistries(ctx context.Context, failed func(error)) (ca string, err error) {
	certs := pki.Dir(filepath.Join(p.Dir, "registry-pki"))
	authority, err := certs.Authority("ca")
	if err != nil {
		return "", err
	}
	if err := authority.Server("registry", controlPlaneAddress); err != nil {
		return "", err
	}
	pair, err := tls.LoadX509KeyPair(certs.CertFile("registry"), certs.KeyFile("registry"))
	if err != nil {
		return "", err
	}
	plain, err := net.Listen("tcp", mirror)
	if err != nil {
		return "", err
	}
	secure, err := tls.Listen("tcp", macRegistry, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}})
	if err != nil {
		return "", err
	}
	for listener, dir := range map[net.Listener]string{plain: p.registryDir(), secure: filepath.Join(p.Dir, "macos")} {
		go func() {
			if err := cluster.ServeRegistry(ctx, listener, dir); err != nil {
				failed(fmt.Errorf("serving the registry in %s: %w", dir, err))
			}
		}()
	}
	return certs.CertFile("ca"), nil
}
