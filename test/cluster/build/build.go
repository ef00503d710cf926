// Package build builds the control plane, and the programs of this repository.
package build

import (
	"bufio"
	"context"
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
	"time"

	"macrack.io/macrack/test/cluster/process"
)

// kubeVersion is the version of k8s.io/kubernetes in hack/devcluster and hack/node; kubeRelease is
// the required release of binaries found elsewhere.
const (
	kubeVersion = "v1.37.2"
	kubeRelease = "v1.37."
)

const heartbeat = 15 * time.Second

// controlPlanePrograms are the programs of Kubernetes and etcd in the cluster. The first five may
// be taken from elsewhere.
var controlPlanePrograms = []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl", "etcdctl", "etcdutl"}

// Programs are the product's binaries by their folder in cmd.
var Programs = map[string]string{
	"apiserver":   "macrack-apiserver",
	"controllers": "macrack-controllers",
	"agent":       "macrack-agent",
	"ledger":      "macrack-ledger",
	"vm":          "macrack-vm",
	"guest-agent": "macrack-guest-agent",

	"kubectl-macrack": "kubectl-macrack",
}

// Root returns the root of this repository, searched upwards from the working directory.
func Root() (string, error) {
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

// Bin returns the folder of built binaries: .dev/bin of the repository.
func Bin() (string, error) {
	root, err := Root()
	return filepath.Join(root, ".dev", "bin"), err
}

// Product builds the macrack binaries into .dev/bin, and the helper program hack/dev as `dev`.
// Missing folders under cmd are skipped. It returns that folder.
func Product(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, ".dev", "bin")
	unlock, err := process.Lock(ctx, filepath.Join(bin, ".product.lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	stamp := "-X macrack.io/macrack/pkg/version.Commit=" + commit(ctx, root)
	for _, folder := range slices.Sorted(maps.Keys(Programs)) {
		if mains, _ := filepath.Glob(filepath.Join(root, "cmd", folder, "*.go")); len(mains) == 0 {
			continue
		}
		name := Programs[folder]
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

// Release builds a package of the module in a folder of this repository (empty: the root), with the
// environment and flags of a release.
func Release(ctx context.Context, out, folder, pkg string, env []string, flags ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return goBuildEnv(ctx, filepath.Join(root, folder), env, os.Stderr, pkg, append(flags, "-o", out, pkg)...)
}

// goBuild runs go build in a module's folder and reports progress. The target is replaced only if
// it changed.
func goBuild(ctx context.Context, dir string, progress io.Writer, what string, args ...string) error {
	return goBuildEnv(ctx, dir, nil, progress, what, args...)
}

func goBuildEnv(ctx context.Context, dir string, env []string, progress io.Writer, what string, args ...string) error {
	tool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("the go tool, which is needed to build %s, is not in $PATH; install Go 1.26 or later (https://go.dev/dl/)", what)
	}
	cmd := exec.CommandContext(ctx, tool, append([]string{"build", "-v", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
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

// Program builds a package of the module in a folder of this repository.
func Program(ctx context.Context, out, folder, pkg string, flags ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return goBuild(ctx, filepath.Join(root, folder), io.Discard, pkg, append(flags, "-o", out, pkg)...)
}
