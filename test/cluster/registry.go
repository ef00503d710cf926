package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/registry"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/test/cluster/process"
)

// ServeRegistry serves an OCI registry whose content is kept in a folder, until ctx ends.
func ServeRegistry(ctx context.Context, l net.Listener, dir string) error {
	blobs, manifests := filepath.Join(dir, "blobs"), filepath.Join(dir, "manifests")
	if err := errors.Join(os.MkdirAll(blobs, 0o755), os.MkdirAll(manifests, 0o755)); err != nil {
		return err
	}
	handler := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)), registry.Logger(log.New(io.Discard, "", 0)))
	if err := restoreManifests(handler, manifests); err != nil {
		return err
	}
	server := &http.Server{Handler: keepManifests(handler, manifests), ErrorLog: log.New(io.Discard, "", 0)}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// keepManifests writes pushed manifests to files, because the registry keeps them in memory only.
func keepManifests(handler http.Handler, dir string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/manifests/") {
			handler.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		if answer.Code == http.StatusCreated {
			record := []byte(r.Header.Get("Content-Type") + "\n" + string(body))
			if err := process.WriteFile(filepath.Join(dir, url.PathEscape(r.URL.Path)), record, 0o644); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		_, _ = answer.Body.WriteTo(w)
	})
}

// restoreManifests restores the manifests in a folder. An index needs the manifests that it names.
func restoreManifests(handler http.Handler, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for len(entries) > 0 {
		var errs error
		var failed []fs.DirEntry
		for _, entry := range entries {
			if err := restoreManifest(handler, dir, entry.Name()); err != nil {
				errs = errors.Join(errs, err)
				failed = append(failed, entry)
			}
		}
		if len(failed) == len(entries) {
			return errs
		}
		entries = failed
	}
	return nil
}

func restoreManifest(handler http.Handler, dir, file string) error {
	record, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return err
	}
	at, err := url.PathUnescape(file)
	if err != nil {
		return err
	}
	mediaType, body, _ := strings.Cut(string(record), "\n")
	r := httptest.NewRequest(http.MethodPut, at, strings.NewReader(body))
	r.Header.Set("Content-Type", mediaType)
	answer := httptest.NewRecorder()
	if handler.ServeHTTP(answer, r); answer.Code != http.StatusCreated {
		return fmt.Errorf("restoring manifest %s: %d %s", at, answer.Code, answer.Body)
	}
	return nil
}

// exampleImages are the images of artifacts/example, and the repositories that they are pushed to.
var exampleImages = []struct{ name, repository string }{
	{"macos-15-xcode-16", "macos/15:xcode-16"},
	{"macos-26-xcode-26", "macos/26:xcode-26"},
}

const exampleDiskSize = 60 << 30 // as in artifacts/example

// exampleMacs are the Macs of artifacts/example, which need its classes.
const exampleMacs = "artifacts/example/macs"

// ApplyExample applies artifacts/example. Its images are pushed to the cluster's registry, which
// must be running.
func (c *Cluster) ApplyExample(ctx context.Context) error {
	fmt.Fprintln(c.progress, "pushing images")
	sources := make([]imageSource, len(exampleImages))
	var wg sync.WaitGroup
	errs := make([]error, len(exampleImages))
	for i := range exampleImages {
		wg.Go(func() { sources[i], errs[i] = c.pushExample(ctx, i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "example")
	base, err := filepath.Rel(dir, filepath.Join(c.root, "artifacts", "example"))
	if err != nil {
		return err
	}
	kustomization := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- " + base + "\npatches:\n"
	for i, image := range exampleImages {
		kustomization += fmt.Sprintf(`- target: {kind: MacOSImage, name: %s}
  patch: |-
    - {op: replace, path: /spec/source, value: {reference: %q, digest: %q}}
`, image.name, sources[i].Reference, sources[i].Digest)
	}
	// All Macs share this machine, whose disk may be small.
	kustomization += `- target: {kind: RackConfig}
  patch: |-
    - {op: replace, path: /spec/imageCache/minimumFree, value: 1Gi}
`
	if err := process.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		return err
	}
	if err := c.Apply(ctx, dir); err != nil {
		if strings.Contains(err.Error(), "the image is Ready") {
			err = fmt.Errorf("%w\nThe state in %s is from other ports or another version; delete it (make clean)", err, c.dir)
		}
		return err
	}
	return c.Apply(ctx, exampleMacs)
}

type imageSource struct{ Reference, Digest string }

// pushExample creates a disk and pushes it.
func (c *Cluster) pushExample(ctx context.Context, i int) (imageSource, error) {
	image := exampleImages[i]
	dir, err := os.MkdirTemp(c.dir, "push-")
	if err != nil {
		return imageSource{}, err
	}
	defer os.RemoveAll(dir)
	disk, aux := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nvram.bin")
	if err := errors.Join(writeExampleDisk(disk, image.name), os.WriteFile(aux, []byte(image.name), 0o600)); err != nil {
		return imageSource{}, err
	}
	reference := process.Loopback(c.Port("registry")) + "/" + image.repository
	pushed, err := images.Push(ctx, images.PushOptions{
		Disk: disk, Aux: aux, HardwareModel: base64.StdEncoding.EncodeToString([]byte("simulated")), Reference: reference, Clock: clock.RealClock{},
	})
	if err != nil {
		return imageSource{}, fmt.Errorf("pushing image %s: %w", image.name, err)
	}
	return imageSource{Reference: reference, Digest: pushed.Digest.String()}, nil
}

// writeExampleDisk creates a large disk with little data, the same each time.
func writeExampleDisk(path, name string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(exampleDiskSize); err != nil {
		return err
	}
	seed := fnv.New64a()
	_, _ = io.WriteString(seed, name)
	source := rand.New(rand.NewPCG(seed.Sum64(), 0))
	content := make([]byte, 4<<20)
	for offset := int64(0); offset < exampleDiskSize; offset += exampleDiskSize / 3 {
		for i := range content {
			content[i] = byte(source.UintN(16))
		}
		copy(content, name)
		if _, err := f.WriteAt(content, offset); err != nil {
			return err
		}
	}
	return f.Close()
}
