package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"filippo.io/age"
)

// The files of the backup, in the folder of the cluster.
const (
	snapshots = "snapshots"
	keyFile   = "key.txt"
	fetched   = "macrack.db"
)

func (s *story) file(name string) string { return filepath.Join(s.tb.Cluster.Dir(), name) }

// backup makes a key, and saves a snapshot for its public part.
func (s *story) backup(ctx context.Context) error {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(s.file(keyFile), []byte(key.String()+"\n"), 0o600), os.MkdirAll(s.file(snapshots), 0o700)); err != nil {
		return err
	}
	etcd := s.tb.Cluster.MacrackEtcd()
	return s.command(ctx, s.ledger, "snapshot", "save", "--directory="+s.file(snapshots), "--recipient="+key.Recipient().String(),
		"--etcd-servers="+etcd.Servers[0], "--etcd-cafile="+etcd.CAFile, "--etcd-certfile="+etcd.CertFile, "--etcd-keyfile="+etcd.KeyFile)
}

// startEmpty makes the data directory of an empty etcd. Its revision is above all earlier ones:
// otherwise the clients would wait for revisions from before the loss.
func (s *story) startEmpty(ctx context.Context, dir string) error {
	if err := s.tb.Cluster.Restart(ctx, etcdMember); err != nil { // with an empty directory
		return err
	}
	etcd := s.tb.Cluster.MacrackEtcd()
	err := s.until(ctx, func(ctx context.Context) string {
		return text(s.command(ctx, filepath.Join(s.tb.Cluster.Bin(), "etcdctl"), "snapshot", "save", s.file(fetched), "--endpoints="+etcd.Servers[0],
			"--cacert="+etcd.CAFile, "--cert="+etcd.CertFile, "--key="+etcd.KeyFile))
	})
	if err := errors.Join(err, s.tb.Cluster.Kill(ctx, etcdMember), os.RemoveAll(dir)); err != nil {
		return err
	}
	return s.openSnapshot(ctx, dir, 2_000_000_000)
}

// restoreBackup decrypts the snapshot, and makes the data directory of an etcd from it.
func (s *story) restoreBackup(ctx context.Context, dir string) error {
	if err := s.command(ctx, s.ledger, "snapshot", "fetch", "--directory="+s.file(snapshots), "--identity="+s.file(keyFile), "--output="+s.file(fetched)); err != nil {
		return err
	}
	return s.openSnapshot(ctx, dir, 1_000_000_000)
}

// openSnapshot makes the data directory of an etcd from the fetched snapshot.
func (s *story) openSnapshot(ctx context.Context, dir string, bump int) error {
	const url = "https://127.0.0.1:1" // the only member has no peers
	return s.command(ctx, filepath.Join(s.tb.Cluster.Bin(), "etcdutl"), "snapshot", "restore", s.file(fetched), "--data-dir="+dir,
		"--name="+etcdMember, "--initial-cluster="+etcdMember+"="+url, "--initial-advertise-peer-urls="+url,
		fmt.Sprintf("--bump-revision=%d", bump), "--mark-compacted")
}

// restoreMacs plans the restore of all Macs, carries out the plan, and plans again.
func (s *story) restoreMacs(ctx context.Context) error {
	plan := ""
	err := s.until(ctx, func(ctx context.Context) string {
		output, err := s.output(ctx, s.ledger, "restore", "--dry-run", "--kubeconfig="+s.tb.Kubeconfig)
		_, plan, _ = strings.Cut(output, " plan=")
		return text(err)
	})
	if err != nil {
		return err
	}
	if err := s.command(ctx, s.ledger, "restore", "--plan=0123456789abcdef", "--kubeconfig="+s.tb.Kubeconfig); err == nil {
		return errors.New("a restore without the plan was accepted")
	}
	if err := s.command(ctx, s.ledger, "restore", "--plan="+plan, "--kubeconfig="+s.tb.Kubeconfig); err != nil {
		return err
	}
	output, err := s.output(ctx, s.ledger, "restore", "--plan="+plan, "--kubeconfig="+s.tb.Kubeconfig)
	if err == nil && !strings.Contains(output, "steps=0") {
		return fmt.Errorf("the second restore is not empty: %s", output)
	}
	return err
}

func (s *story) command(ctx context.Context, program string, args ...string) error {
	_, err := s.output(ctx, program, args...)
	return err
}

// output runs a program, shows what it prints, and returns that.
func (s *story) output(ctx context.Context, program string, args ...string) (string, error) {
	output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	fmt.Fprintf(os.Stderr, "$ %s %s\n%s", filepath.Base(program), strings.Join(args[:min(2, len(args))], " "), output)
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return strings.TrimSpace(string(output)), nil
}
