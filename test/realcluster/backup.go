package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
)

// backUp saves a snapshot of etcd through a port of a member, as docs/install.md describes.
func (w *world) backUp(ctx context.Context) error {
	dir := filepath.Join(w.Dir, "backup")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		encoded, err := w.kubectl(ctx, "get", "secret", "macrack-etcd-client-tls", "--namespace="+cluster.Namespace,
			"--output=jsonpath={.data."+strings.ReplaceAll(file, ".", `\.`)+"}")
		if err != nil {
			return err
		}
		data, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
			return err
		}
	}
	forward := exec.CommandContext(ctx, w.bin("kubectl"), "--kubeconfig="+w.kubeconfig, "port-forward", "pod/macrack-etcd-0", "2379", "--namespace="+cluster.Namespace)
	forward.Cancel = func() error { return forward.Process.Signal(syscall.SIGTERM) }
	if err := forward.Start(); err != nil {
		return err
	}
	defer func() {
		_ = forward.Process.Kill()
		_ = forward.Wait()
	}()
	snapshot := filepath.Join(dir, "macrack.db")
	err := await.Success(ctx, time.Minute, time.Second, func() error {
		return run(ctx, w.bin("etcdctl"), "--endpoints=https://localhost:2379", "--cacert="+filepath.Join(dir, "ca.crt"),
			"--cert="+filepath.Join(dir, "tls.crt"), "--key="+filepath.Join(dir, "tls.key"), "snapshot", "save", snapshot)
	})
	if err != nil {
		return err
	}
	status, err := exec.CommandContext(ctx, w.bin("etcdutl"), "snapshot", "status", snapshot).Output()
	if err != nil {
		return fmt.Errorf("etcdutl snapshot status: %w: %s", err, stderrOf(err))
	}
	w.note = "snapshot: " + strings.TrimSpace(string(status))
	return nil
}
