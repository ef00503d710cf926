package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kubeVersion is the version of k8s.io/kubernetes in hack/devcluster; kubeRelease is the required
// release of binaries found elsewhere.
const (
	kubeVersion = "v1.37.2"
	kubeRelease = "v1.37."
)

const heartbeat = 15 * time.Second

// controlPlanePrograms are the programs of Kubernetes and etcd in the cluster. The first five may
// be taken from elsewhere.
var controlPlanePrograms = []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl", "etcdctl", "etcdutl"}

// macrackPrograms are the product's binaries by their folder in cmd.
var macrackPrograms = map[string]string{
	"apiserver":   "macrack-apiserver",
	"controllers": "macrack-controllers",
	"agent":       "macrack-agent",
	"ledger":      "macrack-ledger",
	"vm":          "macrack-vm",
	"guest-agent": "macrack-guest-agent",
}

// RepoRoot returns the root of this repository, searched upwards from the working directory.
func RepoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module macrack.io/macrack\n") {
			return filepath.EvalSymlinks(dir)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the working directory is not inside the macrack repository")
		}
		dir = parent
	}
}

// BinDir is the folder of built binaries: .dev/bin of the repository.
func BinDir() (string, error) {
	root, err := RepoRoot()
	return filepath.Join(root, ".dev", "bin"), err
}

// ControlPlane returns the folder with etcd, kube-apiserver, kube-scheduler,
// kube-controller-manager and kubectl. Programs in $KUBEBUILDER_ASSETS or $PATH are used if all
// exist in the right version. Otherwise they are built from hack/devcluster, which takes minutes,
// but only after changes of its sources.
func ControlPlane(ctx context.Context, progress io.Writer) (string, error) {
	root, err := RepoRoot()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, ".dev", "bin")
	unlock, err := lockFile(ctx, filepath.Join(bin, ".controlplane.lock"), progress)
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

	if err := removeIfExists(stamp); err != nil {
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
		const version = "k8s.io/component-base/version"
		fmt.Fprintf(progress, "building Kubernetes %s and etcd from hack/devcluster: the first build takes 6 to 16 minutes on 2 cores\n", kubeVersion)
		err := goBuild(ctx, source, progress, "the control plane", "-o", filepath.Join(bin, "controlplane"),
			"-ldflags", fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=37 -X %[1]s.gitTreeState=clean", version, kubeVersion), ".")
		if err != nil {
			return "", err
		}
		for _, name := range controlPlanePrograms {
			if err := relink("controlplane", filepath.Join(bin, name)); err != nil {
				return "", err
			}
		}
	}
	return bin, writeFile(stamp, []byte(want), 0o644)
}

// BuildProduct builds the macrack binaries into .dev/bin, and the helper program hack/dev as `dev`.
// Missing folders under cmd are skipped. It returns that folder.
func BuildProduct(ctx context.Context, progress io.Writer) (string, error) {
	root, err := RepoRoot()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, ".dev", "bin")
	unlock, err := lockFile(ctx, filepath.Join(bin, ".product.lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	stamp := "-X macrack.io/macrack/pkg/version.Commit=" + commit(ctx, root)
	for _, folder := range slices.Sorted(maps.Keys(macrackPrograms)) {
		if mains, _ := filepath.Glob(filepath.Join(root, "cmd", folder, "*.go")); len(mains) == 0 {
			continue
		}
		name := macrackPrograms[folder]
		if err := goBuild(ctx, root, progress, name, "-ldflags", stamp, "-o", filepath.Join(bin, name), "./cmd/"+folder); err != nil {
			return "", err
		}
	}
	return bin, goBuild(ctx, root, progress, "dev", "-o", filepath.Join(bin, "dev"), "./hack/dev")
}

// commit returns the commit of the checkout, with -dirty after changes, or "" if git does not know
// it. The VCS stamps of go build fail in a folder that another user owns.
func commit(ctx context.Context, root string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// goBuild runs go build in a module's folder and reports progress. The target is replaced only if
// it changed.
func goBuild(ctx context.Context, dir string, progress io.Writer, what string, args ...string) error {
	tool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("the go tool, which is needed to build %s, is not in $PATH; install Go 1.26 or later (https://go.dev/dl/)", what)
	}
	cmd := exec.CommandContext(ctx, tool, append([]string{"build", "-v", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("building %s: %w", what, err)
	}

	// go build -v prints the packages that it compiles, one a line, between its messages.
	var mu sync.Mutex
	var output []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			mu.Lock()
			output = append(output, lines.Text())
			mu.Unlock()
		}
	}()
	began := time.Now()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for reading := true; reading; {
		select {
		case <-read:
			reading = false
		case <-beat.C:
			mu.Lock()
			state := "starting"
			if len(output) > 0 {
				state = fmt.Sprintf("%d packages compiled, last %s", len(output), output[len(output)-1])
			}
			mu.Unlock()
			fmt.Fprintf(progress, "  building %s: %s (%s)\n", what, time.Since(began).Round(time.Second), state)
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building %s: %w", what, context.Cause(ctx))
		}
		return fmt.Errorf("building %s in %s: %w\n%s", what, dir, err, strings.Join(output[max(0, len(output)-40):], "\n"))
	}
	if took := time.Since(began); took > heartbeat {
		fmt.Fprintf(progress, "  built %s in %s\n", what, took.Round(time.Second))
	}
	return nil
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
	if err := removeIfExists(link); err != nil {
		return err
	}
	return os.Symlink(target, link)
}

// lockFile locks a file, and waits while another process holds the lock. The system releases the
// lock of a process that dies.
func lockFile(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	said := false
	err = poll(ctx, func(context.Context) (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			if !said {
				owner, _ := io.ReadAll(io.NewSectionReader(f, 0, 64))
				fmt.Fprintf(progress, "waiting for process %s, which does the same work\n", strings.TrimSpace(string(owner)))
				said = true
			}
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	}
	return func() { f.Close() }, nil
}
