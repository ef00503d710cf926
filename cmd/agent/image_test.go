package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	orasregistry "oras.land/oras-go/v2/registry"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	cmd := newImageCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.Execute()
	return out.String(), err
}

// What push prints can be applied, and the image it names can be pulled.
func TestImagePush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/macos/26:xcode-26"
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(disk, []byte("macOS"), 0o600))
	require.NoError(t, os.Truncate(disk, 3<<20))

	printed, err := run(t, "push", "--disk", disk, "--hardware-model", "bW9kZWw=", "--macos", "26.1:25B78", "--xcode", "26.1:17B55", "--guest-agent", "0.1.0",
		"--pull-secret", "macrack-images/robot", reference)
	require.NoError(t, err)
	assert.NotContains(t, printed, "status")
	var image imagev1alpha1.MacOSImage
	require.NoError(t, yaml.UnmarshalStrict([]byte(printed), &image))
	assert.Equal(t, "macos-26-xcode-26", image.Name)
	assert.Equal(t, reference, image.Spec.Source.Reference)
	assert.Equal(t, []imagev1alpha1.ImageContent{{Name: "macOS", Version: "26.1", Build: "25B78"}, {Name: "Xcode", Version: "26.1", Build: "17B55"}, {Name: "guest-agent", Version: "0.1.0"}}, image.Spec.Contents)
	assert.Equal(t, &imagev1alpha1.SecretReference{Namespace: "macrack-images", Name: "robot"}, image.Spec.PullSecretRef)
	assert.Equal(t, "3Mi", image.Spec.DiskSize.String())

	state := filepath.Join(dir, "state")
	store := &images.OCI{Dir: filepath.Join(state, "images"), Clock: clock.RealClock{}}
	_, err = store.Ensure(t.Context(), images.Image{Name: image.Name, Reference: reference, Digest: image.Spec.Source.Digest, DiskSize: image.Spec.DiskSize.Int64()}, images.Needs{})
	require.NoError(t, err)
	listed, err := run(t, "list", "--state-dir", state)
	require.NoError(t, err)
	assert.Contains(t, listed, "macos-26-xcode-26  "+image.Spec.Source.Digest)
	_, err = run(t, "remove", "--state-dir", state, image.Name)
	require.NoError(t, err)
	listed, err = run(t, "list", "--state-dir", state)
	require.NoError(t, err)
	assert.NotContains(t, listed, "macos")
}

func TestImagePushRefusals(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	flags := []string{"push", "--disk", disk, "--macos", "26.1", "--guest-agent", "0.1.0"}
	for says, args := range map[string][]string{
		"is not a reference such as":     append(flags[:7:7], "macos"),
		"has a digest":                   append(flags[:7:7], "127.0.0.1:1/macos@sha256:"+strings.Repeat("0", 64)),
		"must be NAMESPACE/NAME":         append(flags[:7:7], "--pull-secret", "robot", "127.0.0.1:1/macos"),
		"the hardware model is not":      append(flags[:7:7], "--hardware-model", "?", "127.0.0.1:1/macos"),
		"is no disk image":               append(flags[:7:7], "127.0.0.1:1/macos"),
		`required flag(s) "macos" not`:   {"push", "--disk", disk, "--guest-agent", "0.1.0", "127.0.0.1:1/macos"},
		"accepts 1 arg(s), received 0":   flags,
		`"state-dir" not set`:            {"list"},
		"is not the name of a MacOSImag": {"remove", "--state-dir", t.TempDir(), "../x"},
	} {
		_, err := run(t, args...)
		require.ErrorContains(t, err, says)
	}
}

func TestNameOf(t *testing.T) {
	for reference, want := range map[string]string{
		"registry.example.com/macos/26:xcode-26": "macos-26-xcode-26",
		"127.0.0.1:5000/a/b_c":                   "a-b-c",
		"localhost/macos:26.1_Beta":              "macos-26.1-beta",
	} {
		parsed, err := orasregistry.ParseReference(reference)
		require.NoError(t, err)
		assert.Equal(t, want, nameOf(parsed))
	}
}
