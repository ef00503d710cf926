package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/process"
)

// packages are those of Debian with the programs of a Node that are not built here. They are
// unpacked, but not installed.
var packages = []string{"runc", "containerd", "containernetworking-plugins", "nftables", "libnftables1", "libnftnl11", "libjansson4"}

// olderCommit is the release to upgrade from while no commit has a tag.
const olderCommit = "HEAD~10"

const staticFlags = "-s -w"

// prepare builds the programs and images, or takes those of the last run.
func (p *plan) prepare(ctx context.Context, o options) error {
	if o.reuse {
		return p.reuse()
	}
	if err := p.build(ctx, o.previous); err != nil {
		return err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return process.WriteFile(p.preparedFile(), data, 0o600)
}

// preparedFile has the plan of the last run. Its images and releases are kept.
func (p *plan) preparedFile() string { return filepath.Join(p.nodeDir(), "prepared.json") }

func (p *plan) reuse() error {
	data, err := os.ReadFile(p.preparedFile())
	if err != nil {
		return fmt.Errorf("%w; run the test once without -reuse", err)
	}
	var last plan
	if err := json.Unmarshal(data, &last); err != nil {
		return err
	}
	p.Registry, p.ImagesTook, p.Current, p.Earlier = last.Registry, last.ImagesTook, last.Current, last.Earlier
	return nil
}

func (p *plan) build(ctx context.Context, previous string) error {
	for _, path := range []string{p.preparedFile(), p.registryDir(), p.previousDir()} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	if _, err := build.ControlPlane(ctx, os.Stderr); err != nil {
		return err
	}
	if err := p.unpack(ctx); err != nil {
		return err
	}
	if err := p.compile(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.Registry = fmt.Sprintf("localhost:%d", listener.Addr().(*net.TCPAddr).Port)
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- cluster.ServeRegistry(serving, listener, p.registryDir()) }()
	defer func() {
		stop()
		<-served
	}()
	if err := p.pushSystemImages(ctx); err != nil {
		return err
	}
	began := time.Now()
	if p.Current, err = p.makeImages(ctx, p.Root, "macrack"); err != nil {
		return err
	}
	p.ImagesTook = time.Since(began)
	if p.Until != "" && previous == "" {
		return nil // the steps before the upgrade need no earlier release
	}
	p.Earlier, err = p.earlier(ctx, previous)
	return err
}

// nodeDir has the programs and images, which are kept.
func (p *plan) nodeDir() string { return filepath.Join(p.Root, ".dev", "node") }

func (p *plan) registryDir() string { return filepath.Join(p.nodeDir(), "registry") }

// previousDir has the checkout of the earlier release.
func (p *plan) previousDir() string { return filepath.Join(p.nodeDir(), "previous") }

func (p *plan) bin(name string) string { return filepath.Join(p.Root, ".dev", "bin", name) }

// unpack downloads the packages of Debian, once.
func (p *plan) unpack(ctx context.Context) error {
	target := filepath.Join(p.nodeDir(), "root")
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("containerd and runc come from packages of Debian: %w; run the test on Debian 12 or later", err)
	}
	debs, err := os.MkdirTemp(p.Dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	fmt.Fprintf(os.Stderr, "downloading %s\n", strings.Join(packages, ", "))
	download := exec.CommandContext(ctx, "apt-get", append([]string{"download", "--quiet"}, packages...)...)
	download.Dir = debs
	if out, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download: %w; run apt-get update first\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	partial := target + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o755)); err != nil {
		return err
	}
	for _, file := range files {
		if err := run(ctx, "dpkg", "--extract", file, partial); err != nil {
			return err
		}
	}
	return os.Rename(partial, target)
}

// compile builds the programs of Nodes, those of Macs, and helm. The results are kept.
func (p *plan) compile(ctx context.Context) error {
	static := []string{"CGO_ENABLED=0"}
	for _, b := range []struct {
		out, folder, pkg string
		env, flags       []string
	}{
		{"kubelet", "hack/node", ".", nil, []string{"-ldflags", build.KubeFlags()}},
		{"coredns", "hack/coredns", ".", static, []string{"-trimpath", "-ldflags", staticFlags}},
		{"etcd", ".", "go.etcd.io/etcd/server/v3", static, []string{"-trimpath", "-ldflags", staticFlags}},
		{"pause", ".", "./test/realcluster/pause", static, []string{"-trimpath", "-ldflags", staticFlags}},
		{"../bin/helm", "test/conformance", "helm.sh/helm/v4/cmd/helm", nil, nil},
		{"../bin/macrack-agent", ".", "./cmd/agent", nil, nil},
		{"../bin/macrack-vm", ".", "./cmd/vm", nil, nil},
		{"../bin/macrack-guest-agent", ".", "./cmd/guest-agent", nil, nil},
	} {
		fmt.Fprintf(os.Stderr, "building %s\n", filepath.Base(b.out))
		if err := build.Release(ctx, filepath.Join(p.nodeDir(), b.out), b.folder, b.pkg, b.env, b.flags...); err != nil {
			return err
		}
	}
	return relink("kubelet", filepath.Join(p.nodeDir(), "kube-proxy"))
}

func relink(target, link string) error {
	if err := process.RemoveFile(link); err != nil {
		return err
	}
	return os.Symlink(target, link)
}

// makeImages runs `make images` in a checkout, with a prefix in the registry, and keeps its values.
func (p *plan) makeImages(ctx context.Context, checkout, prefix string) (release, error) {
	fmt.Fprintf(os.Stderr, "make images (%s)\n", prefix)
	cmd := exec.CommandContext(ctx, "make", "images", "IMAGES="+p.Registry+"/"+prefix, "PLAIN_HTTP=1", "PLATFORMS=linux/"+runtime.GOARCH)
	cmd.Dir = checkout
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return release{}, fmt.Errorf("make images in %s: %w", checkout, err)
	}
	values, err := os.ReadFile(filepath.Join(checkout, ".dev", "images", "values.yaml"))
	if err != nil {
		return release{}, err
	}
	r := release{Name: prefix, Chart: filepath.Join(checkout, "artifacts", "charts", "macrack"), Values: filepath.Join(p.nodeDir(), prefix+"-values.yaml")}
	return r, os.WriteFile(r.Values, values, 0o644)
}

// earlier makes the release to upgrade from, in a clone.
func (p *plan) earlier(ctx context.Context, commit string) (release, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", p.Root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	if commit == "" {
		commit, _ = git("describe", "--tags", "--abbrev=0", "HEAD^")
	}
	if commit == "" {
		commit = olderCommit
	}
	description, err := git("log", "-1", "--format=%h of %cs", commit)
	if err != nil {
		return release{}, fmt.Errorf("commit %s not found: %w; name an earlier release with -previous", commit, err)
	}
	if commit, err = git("rev-parse", commit); err != nil {
		return release{}, err
	}
	dir := p.previousDir()
	// A clone shares no worktree list with the repository, so nothing of it can stay there.
	if err := run(ctx, "git", "clone", "--quiet", "--shared", "--no-checkout", p.Root, dir); err != nil {
		return release{}, err
	}
	if err := run(ctx, "git", "-C", dir, "checkout", "--quiet", "--detach", commit); err != nil {
		return release{}, err
	}
	r, err := p.makeImages(ctx, dir, "macrack-previous")
	r.Name = description
	return r, err
}
