package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// macs is the number of Macs.
	macs = 2
	// imageReference is an image of macOS in the registry of the Macs.
	imageReference = macRegistry + "/macos/26:xcode-26"
	imageName      = "macos-26-xcode-26"
	diskSize       = 1 << 30 // bytes
)

// A mac is a machine outside of the cluster with an agent, whose VMs are simulated.
type mac struct {
	machine
	serial string
}

func (m *mac) stateDir() string { return filepath.Join(m.dir, "state") }

// joinMac registers a Mac and makes it join, as docs/install.md describes, and starts its agent.
func (w *world) joinMac(ctx context.Context, m *mac) error {
	if err := m.start(ctx); err != nil {
		return err
	}
	err := w.apply(ctx, fmt.Sprintf(`apiVersion: rack.macrack.io/v1alpha1
kind: MacNode
metadata: {name: %s}
spec: {serialNumber: %s, className: mini-m4}
`, m.name, m.serial))
	if err != nil {
		return err
	}
	token := exec.CommandContext(ctx, w.bin("macrack-agent"), "token", "create", m.name, "--print-join-command", "--server="+w.cluster.Server(), "--kubeconfig="+w.kubeconfig)
	printed, err := token.Output()
	if err != nil {
		return fmt.Errorf("macrack-agent token create: %w: %s", err, stderrOf(err))
	}
	join := strings.Replace(string(printed), "macrack-agent join", w.bin("macrack-agent")+" join --state-dir "+m.stateDir(), 1)
	if err := m.run(ctx, "bash", "-c", join); err != nil {
		return err
	}
	return m.launch(program{
		Name: "agent",
		Env:  []string{"SSL_CERT_FILE=" + w.registryCA},
		Args: []string{
			w.bin("macrack-agent"), "run", "--node-name=" + m.name, "--state-dir=" + m.stateDir(), "--listen=0.0.0.0:10250",
			"--backend=sim", "--sim-host-dir=" + filepath.Join(m.dir, "host"), "--sim-serial-number=" + m.serial,
			"--sim-guest-agent=" + w.bin("macrack-guest-agent"),
		},
	})
}

// joinMacs makes the Macs join, and waits until they can be leased.
func (w *world) joinMacs(ctx context.Context) error {
	for _, m := range w.macs {
		if err := w.joinMac(ctx, m); err != nil {
			return err
		}
	}
	_, err := w.kubectl(ctx, "wait", "macnodes", "--all", "--for=jsonpath={.status.phase}=Available", "--timeout=2m")
	return err
}

// pushImage pushes a disk as an image of macOS. Only Macs can reach the registry, so one of them
// verifies it.
func (w *world) pushImage(ctx context.Context) error {
	disk, aux := filepath.Join(w.Dir, "disk.img"), filepath.Join(w.Dir, "nvram.bin")
	err := errors.Join(
		os.WriteFile(disk, []byte(imageName), 0o600),
		os.Truncate(disk, diskSize),
		os.WriteFile(aux, []byte(imageName), 0o600),
	)
	if err != nil {
		return err
	}
	push := exec.CommandContext(ctx, w.bin("macrack-agent"), "image", "push", "--disk", disk, "--aux", aux, "--kubeconfig", w.kubeconfig,
		"--hardware-model", base64.StdEncoding.EncodeToString([]byte("simulated")), "--macos", "26.1:25B78", "--xcode", "26.1:17B55", "--guest-agent", "0.1.0", imageReference)
	push.Env = append(os.Environ(), "SSL_CERT_FILE="+w.registryCA)
	manifest, err := push.Output()
	if err != nil {
		return fmt.Errorf("macrack-agent image push: %w: %s", err, stderrOf(err))
	}
	if err := w.apply(ctx, string(manifest)); err != nil {
		return err
	}
	_, err = w.kubectl(ctx, "wait", "--for=condition=Ready", "macosimage/"+imageName, "--timeout=3m")
	return err
}

// runners returns the pids of the processes of VMs on a Mac. They stay the same while a VM runs.
func (m *mac) runners(ctx context.Context) ([]string, error) {
	out, err := m.command(ctx, "pgrep", "--exact", "macrack-vm").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // no process matches
		return nil, nil
	}
	return strings.Fields(string(out)), err
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}

// settle is the time in which a Mac notices an outage and its end.
const settle = 15 * time.Second
