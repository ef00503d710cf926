package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster/process"
)

// ControlPlane returns the folder with etcd, kube-apiserver, kube-scheduler,
// kube-controller-manager and kubectl. Programs in $KUBEBUILDER_ASSETS or $PATH are used if all
// exist in the right version. Otherwise they are built from hack/devcluster, which takes minutes,
// but only after changes of its sources.
func ControlPlane(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, ".dev", "bin")
	unlock, err := process.Lock(ctx, filepath.Join(bin, ".controlplane.lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()

	source := filepath.Join(root, "hack", "devcluster")
	found := findPrograms(ctx, bin)
	want, err := controlPlaneStamp(ctx, source, found)
	if err != nil {
		return "", err
	}
	stamp := filepath.Join(bin, "controlplane.stamp")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want && allExist(bin, controlPlanePrograms[:5]) {
		return bin, nil
	}

	if err := process.RemoveFile(stamp); err != nil {
		return "", err
	}
	if found != nil {
		for name, path := range found {
			fmt.Fprintf(progress, "using %s\n", path)
			if err := relink(path, filepath.Join(bin, name)); err != nil {
				return "", err
			}
		}
	} else {
		fmt.Fprintf(progress, "building Kubernetes %s and etcd from hack/devcluster: the first build takes 6 to 16 minutes on 2 cores\n", kubeVersion)
		err := goBuild(ctx, source, progress, "the control plane", "-o", filepath.Join(bin, "controlplane"),
			"-ldflags", KubeFlags(), ".")
		if err != nil {
			return "", err
		}
		for _, name := range controlPlanePrograms {
			if err := relink("controlplane", filepath.Join(bin, name)); err != nil {
				return "", err
			}
		}
	}
	return bin, process.WriteFile(stamp, []byte(want), 0o644)
}

// KubeFlags returns the flags of the linker that give programs of Kubernetes their version.
func KubeFlags() string {
	const version = "k8s.io/component-base/version"
	return fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=37 -X %[1]s.gitTreeState=clean", version, kubeVersion)
}

// findPrograms searches all programs of the control plane in $KUBEBUILDER_ASSETS and $PATH; nil if
// any is missing or of another release.
func findPrograms(ctx context.Context, bin string) map[string]string {
	dirs := append([]string{os.Getenv("KUBEBUILDER_ASSETS")}, filepath.SplitList(os.Getenv("PATH"))...)
	found := map[string]string{}
	for _, name := range controlPlanePrograms[:5] {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if dir == "" || dir == bin || !rightVersion(ctx, name, path) {
				continue
			}
			found[name] = path
			break
		}
		if found[name] == "" {
			return nil
		}
	}
	return found
}

func rightVersion(ctx context.Context, name, path string) bool {
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	args, want := []string{"--version"}, kubeRelease
	switch name {
	case "etcd":
		want = "etcd Version: 3."
	case "kubectl":
		args = []string{"version", "--client"}
	}
	out, err := exec.CommandContext(ctx, path, args...).Output()
	return err == nil && strings.Contains(string(out), want)
}

// controlPlaneStamp identifies the sources of the control plane.
func controlPlaneStamp(ctx context.Context, source string, found map[string]string) (string, error) {
	h := sha256.New()
	if found != nil {
		for _, name := range controlPlanePrograms[:5] {
			fmt.Fprintln(h, name, found[name])
		}
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	for _, file := range append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")) {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, filepath.Base(file), len(data))
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func allExist(dir string, names []string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func relink(target, link string) error {
	if err := process.RemoveFile(link); err != nil {
		return err
	}
	return os.Symlink(target, link)
}
