package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	"macrack.io/macrack/pkg/apis/scalar"
	orasregistry "oras.land/oras-go/v2/registry"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	if os.Getenv("KUBECONFIG") == "" {
		t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	}
	cmd := newImageCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.Execute()
	return out.String(), err
}

// The printed MacOSImage can be applied, and the image that it names can be pulled.
func TestImagePush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/macos/26:xcode-26"
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(disk, []byte("macOS"), 0o600))
	require.NoError(t, os.Truncate(disk, 3<<20))

	aux := filepath.Join(dir, "nvram.bin")
	require.NoError(t, os.WriteFile(aux, []byte("nvram"), 0o600))

	printed, err := run(t, "push", "--disk", disk, "--aux", aux, "--hardware-model", "bW9kZWw=", "--macos", "26.1:25B78", "--xcode", "26.1:17B55", "--guest-agent", "0.1.0",
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

// A virtual machine of tart is pushed as it is.
func TestImagePushOfTartVM(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	home := t.TempDir()
	t.Setenv("TART_HOME", home)
	dir := filepath.Join(home, "vms", "tahoe")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	config := `{"version": 1, "os": "darwin", "arch": "arm64", "hardwareModel": "bW9kZWw=", "ecid": "ZWNpZA=="}`
	for name, content := range map[string]string{"config.json": config, "disk.img": "macOS" + strings.Repeat("\x00", 1<<20-5), "nvram.bin": "nvram"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	reference := strings.TrimPrefix(server.URL, "http://") + "/macos/26"
	push := func(args ...string) imagev1alpha1.MacOSImage {
		printed, err := run(t, append(append([]string{"push", "--macos", "26.1", "--guest-agent", "0.1.0"}, args...), reference)...)
		require.NoError(t, err)
		var image imagev1alpha1.MacOSImage
		require.NoError(t, yaml.UnmarshalStrict([]byte(printed), &image))
		return image
	}
	byName := push("--tart-vm", "tahoe")
	assert.Equal(t, "bW9kZWw=", byName.Spec.HardwareModel)
	assert.Equal(t, byName, push("--tart-vm", dir))
	assert.Equal(t, byName, push("--disk", dir+"/disk.img", "--aux", dir+"/nvram.bin", "--hardware-model", "bW9kZWw=", "--machine-identifier", "ZWNpZA=="))
	assert.NotEqual(t, byName, push("--disk", dir+"/disk.img", "--aux", dir+"/nvram.bin", "--hardware-model", "bW9kZWw="), "the machine identifier is in the image")
}

// Errors are reported before the first request to the registry: these references have a closed
// port.
func TestImagePushRefusals(t *testing.T) {
	dir := t.TempDir()
	disk, aux, empty := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nvram.bin"), filepath.Join(dir, "empty.img")
	require.NoError(t, os.WriteFile(disk, []byte("macOS"), 0o600))
	require.NoError(t, os.Truncate(disk, 3<<20))
	require.NoError(t, os.WriteFile(aux, []byte("nvram"), 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	required := []string{"push", "--disk", disk, "--aux", aux, "--hardware-model", "bW9kZWw=", "--macos", "26.1", "--guest-agent", "0.1.0"}
	push := func(args ...string) []string { return append(required[:len(required):len(required)], args...) }
	const here = "127.0.0.1:1/macos"
	for says, args := range map[string][]string{
		"invalid reference \"macos\"; use one such as":        push("macos"),
		"use a tag or none":                                   push(here + "@sha256:" + strings.Repeat("0", 64)),
		"invalid --pull-secret \"robot\"; use NAMESPACE/NAME": push("--pull-secret", "robot", here),
		"the hardware model is not":                           push("--hardware-model", "?", here),
		"the hardware model is missing":                       push("--hardware-model", "", here),
		"the auxiliary storage (NVRAM) is missing":            push("--aux", "", here),
		"not a disk image":                                    push("--disk", empty, here),
		"spec.contents[0].version: Forbidden":                 push("--macos", "tahoe", here),
		"spec.contents[0].build: Forbidden":                   push("--macos", "26.1:beta", here),
		"spec.contents[1].version: Forbidden":                 push("--guest-agent", "latest", here),
		`"runner" in the tag`:                                 push(here + ":runner"),
		"metadata.name: Invalid":                              push("--name", "No_Name", here),
		"spec.pullSecretRef.name: Invalid":                    push("--pull-secret", "a/B", here),
		`required flag(s) "macos" not set`:                    {"push", "--disk", disk, "--guest-agent", "0.1.0", here},
		"missing [aux hardware-model]":                        {"push", "--disk", disk, "--macos", "26.1", "--guest-agent", "0.1.0", here},
		"at least one of the flags in the group":              {"push", "--macos", "26.1", "--guest-agent", "0.1.0", here},
		"tart-vm] were all set":                               push("--tart-vm", "tahoe", here),
		`tart has no virtual machine "tahoe"`:                 {"push", "--tart-vm", "tahoe", "--macos", "26.1", "--guest-agent", "0.1.0", here},
		"accepts 1 arg(s), received 0":                        required,
		`"state-dir" not set`:                                 {"list"},
		"invalid image name":                                  {"remove", "--state-dir", t.TempDir(), "../x"},
	} {
		_, err := run(t, args...)
		require.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "connect", "the registry was asked")
	}
	_, err := run(t, push("--macos", "tahoe", "--name", "No_Name", "--hardware-model", "?", here)...)
	for _, says := range []string{"nothing was pushed: ", "hardware model", "metadata.name", "contents[0].version"} {
		assert.ErrorContains(t, err, says, "all at once")
	}
}

// The dry run comes before the first request to the registry.
func TestImagePushAsksTheAPIServer(t *testing.T) {
	dir := t.TempDir()
	disk, aux := filepath.Join(dir, "disk.img"), filepath.Join(dir, "nvram.bin")
	require.NoError(t, os.WriteFile(disk, []byte("macOS"), 0o600))
	require.NoError(t, os.Truncate(disk, 3<<20))
	require.NoError(t, os.WriteFile(aux, []byte("nvram"), 0o600))
	var pushes atomic.Int64
	backend := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pushes.Add(1)
		backend.ServeHTTP(w, r)
	}))
	defer images.Close()
	reference := strings.TrimPrefix(images.URL, "http://") + "/macos/26"

	existing := &imagev1alpha1.MacOSImage{
		TypeMeta: metav1.TypeMeta{APIVersion: "image.macrack.io/v1alpha1", Kind: "MacOSImage"}, ObjectMeta: metav1.ObjectMeta{Name: "macos-26"},
		Spec: imagev1alpha1.MacOSImageSpec{
			Contents: []imagev1alpha1.ImageContent{{Name: "macOS", Version: "26.1"}, {Name: "guest-agent", Version: "0.1.0"}},
			Source:   imagev1alpha1.ImageSource{Reference: reference, Digest: "sha256:" + strings.Repeat("1", 64)},
			DiskSize: scalar.MustParse("3Mi"), HardwareModel: "bW9kZWw=",
		},
		Status: imagev1alpha1.MacOSImageStatus{Phase: imagev1alpha1.MacOSImageReady},
	}
	other := existing.DeepCopy()
	other.Spec.Contents[0].Version = "26.0"
	pending := other.DeepCopy()
	pending.Status.Phase = imagev1alpha1.MacOSImagePending
	invalid := apierrors.NewInvalid(imagev1alpha1.SchemeGroupVersion.WithKind("MacOSImage").GroupKind(), "macos-26", nil)
	exists := apierrors.NewAlreadyExists(imagev1alpha1.Resource("macosimages"), "macos-26")
	for name, tt := range map[string]struct {
		answer   *apierrors.StatusError // to the dry run
		existing *imagev1alpha1.MacOSImage
		flags    []string
		says     string // empty: it is pushed
	}{
		"server accepts":           {},
		"server rejects":           {answer: invalid, says: "is invalid"},
		"check disabled":           {answer: invalid, flags: []string{"--server-check=false"}},
		"the same is Ready":        {answer: exists, existing: existing},
		"another is Ready":         {answer: exists, existing: other, says: "is Ready and differs, so it cannot be changed; set another name with --name"},
		"another can be corrected": {answer: exists, existing: pending},
		"no permission":            {answer: apierrors.NewForbidden(imagev1alpha1.Resource("macosimages"), "x", nil), says: "is forbidden"},
		"a server without MacRack": {answer: apierrors.NewNotFound(imagev1alpha1.Resource("macosimages"), ""), says: "not found"},
		"unknown context":          {flags: []string{"--context", "none"}, says: `context "none" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch r.Method {
				case http.MethodPost:
					asked++
					assert.Equal(t, "/apis/image.macrack.io/v1alpha1/macosimages", r.URL.Path)
					assert.Equal(t, "All", r.URL.Query().Get("dryRun"))
					if tt.answer != nil {
						w.WriteHeader(int(tt.answer.ErrStatus.Code))
						status := tt.answer.Status()
						status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
						_ = json.NewEncoder(w).Encode(status)
						return
					}
					body, _ := io.ReadAll(r.Body)
					w.WriteHeader(http.StatusCreated)
					_, _ = w.Write(body)
				default:
					_ = json.NewEncoder(w).Encode(tt.existing)
				}
			}))
			defer api.Close()
			kubeconfig := kubeconfigOf(t, api.URL)
			pushes.Store(0)
			args := append([]string{"push", "--disk", disk, "--aux", aux, "--hardware-model", "bW9kZWw=", "--macos", "26.1", "--guest-agent", "0.1.0", "--kubeconfig", kubeconfig}, tt.flags...)
			_, err := run(t, append(args, reference)...)
			if tt.says == "" {
				require.NoError(t, err)
				assert.Positive(t, pushes.Load())
				return
			}
			assert.ErrorContains(t, err, tt.says)
			assert.ErrorContains(t, err, "nothing was pushed")
			assert.Zero(t, pushes.Load())
		})
	}

	// The dry run also uses the default cluster, which need not serve MacRack.
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	kubeconfig := kubeconfigOf(t, api.URL)
	t.Setenv("KUBECONFIG", kubeconfig)
	_, err := run(t, "push", "--disk", disk, "--aux", aux, "--hardware-model", "bW9kZWw=", "--macos", "26.1", "--guest-agent", "0.1.0", reference)
	assert.NoError(t, err)
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

// kubeconfigOf returns a kubeconfig for the API server at a URL.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"rack": {Server: server}}, CurrentContext: "admin",
		Contexts: map[string]*clientcmdapi.Context{"admin": {Cluster: "rack"}},
	}, path))
	return path
}
