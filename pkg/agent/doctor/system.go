package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"howett.net/plist"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/agent/disk"
	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/vm/contract"
)

// Commands queries macOS with its command-line tools. No other type parses their output.
type Commands struct {
	// Run runs a command and returns its standard output; nil runs the real command.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
}

func (c Commands) run(ctx context.Context, name string, args ...string) (string, error) {
	run := c.Run
	if run == nil {
		run = func(ctx context.Context, name string, args ...string) ([]byte, error) {
			return exec.CommandContext(ctx, name, args...).Output()
		}
	}
	out, err := run(ctx, name, args...)
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// succeeds reports whether a command exits with status 0. Another exit status is not an error.
func (c Commands) succeeds(ctx context.Context, name string, args ...string) (bool, error) {
	_, err := c.run(ctx, name, args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return false, nil
	}
	return err == nil, err
}

// Platform implements Host.
func (c Commands) Platform() (string, string) { return runtime.GOOS, runtime.GOARCH }

// MacOSVersion implements Host.
func (c Commands) MacOSVersion(ctx context.Context) (string, error) {
	return c.run(ctx, "/usr/bin/sw_vers", "-productVersion")
}

// Entitled implements Host.
func (c Commands) Entitled(ctx context.Context, program, entitlement string) (bool, error) {
	out, err := c.run(ctx, "/usr/bin/codesign", "--display", "--entitlements", "-", "--xml", program)
	if err != nil || out == "" {
		return false, err
	}
	var entitlements map[string]any
	if err := plist.NewDecoder(bytes.NewReader([]byte(out))).Decode(&entitlements); err != nil {
		return false, fmt.Errorf("entitlements of %s: %w", program, err)
	}
	return entitlements[entitlement] == true, nil
}

// ConsoleUID implements Host.
func (c Commands) ConsoleUID(ctx context.Context) (int, error) {
	out, err := c.run(ctx, "/usr/bin/stat", "-f", "%u", "/dev/console")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// AutoLogin implements Host.
func (c Commands) AutoLogin(ctx context.Context) (string, error) {
	args := []string{"read", "/Library/Preferences/com.apple.loginwindow", "autoLoginUser"}
	set, err := c.succeeds(ctx, "/usr/bin/defaults", args...)
	if err != nil || !set {
		return "", err
	}
	return c.run(ctx, "/usr/bin/defaults", args...)
}

// FileVault implements Host.
func (c Commands) FileVault(ctx context.Context) (bool, error) {
	out, err := c.run(ctx, "/usr/bin/fdesetup", "status")
	return strings.Contains(out, "FileVault is On"), err
}

// Sleeps implements Host.
func (c Commands) Sleeps(ctx context.Context) (bool, error) {
	out, err := c.run(ctx, "/usr/bin/pmset", "-g")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "sleep" {
			return fields[1] != "0", nil
		}
	}
	return false, errors.New("pmset shows no sleep setting")
}

// JobLoaded implements Host.
func (c Commands) JobLoaded(ctx context.Context, domain, label string) (bool, error) {
	return c.succeeds(ctx, "/bin/launchctl", "print", domain+"/"+label)
}

// VirtualMachines implements Host.
func (c Commands) VirtualMachines(ctx context.Context) (int, error) {
	out, err := c.run(ctx, "/bin/ps", "-axo", "comm=")
	count := 0
	for line := range strings.Lines(out) {
		if strings.HasSuffix(strings.TrimSpace(line), "com.apple.Virtualization.VirtualMachine") {
			count++
		}
	}
	return count, err
}

// MayReboot implements Host.
func (c Commands) MayReboot(ctx context.Context) (bool, error) {
	return c.succeeds(ctx, "/usr/bin/sudo", "-n", "-l", "/sbin/shutdown", "-r", "now")
}

const (
	// sharingPreferences holds the settings of bootpd(8), the DHCP server of guests behind NAT.
	sharingPreferences = "/Library/Preferences/SystemConfiguration/com.apple.InternetSharing.default.plist"
	// defaultLease is the default of bootpd.
	defaultLease = 24 * time.Hour
)

// AddressLease implements Host.
func (c Commands) AddressLease(ctx context.Context) (time.Duration, error) {
	args := []string{"-extract", "bootpd.DHCPLeaseTimeSecs", "raw", "-o", "-", sharingPreferences}
	set, err := c.succeeds(ctx, "/usr/bin/plutil", args...)
	if err != nil || !set {
		return defaultLease, err
	}
	out, err := c.run(ctx, "/usr/bin/plutil", args...)
	if err != nil {
		return 0, err
	}
	seconds, err := strconv.ParseInt(out, 10, 32)
	return time.Duration(seconds) * time.Second, err
}

// Files queries the file system.
type Files struct{}

// Owner implements Storage.
func (Files) Owner(path string) (int, uint32, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fmt.Errorf("%s: owner unknown on this system", path)
	}
	return int(stat.Uid), uint32(info.Mode().Perm()), nil
}

// Free implements Storage.
func (Files) Free(path string) (int64, error) { return disk.Free(path) }

// CanClone implements Storage.
func (Files) CanClone(dir string) (bool, error) {
	tmp, err := os.MkdirTemp(dir, ".doctor-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	const size = 64 << 10
	src := filepath.Join(tmp, "a")
	if err := os.WriteFile(src, bytes.Repeat([]byte{1}, size), 0o600); err != nil {
		return false, err
	}
	method, err := disk.Clone(src, filepath.Join(tmp, "b"), size)
	return method == disk.CopyOnWrite, err
}

// Locked implements Storage. It does not create the file.
func (Files) Locked(lockFile string) (bool, error) {
	if _, err := os.Stat(lockFile); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	lock, err := contract.TryLockFile(lockFile)
	if errors.Is(err, contract.ErrLocked) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	lock.Unlock()
	return false, nil
}

// Answers implements Storage. It does not take the slot's lock, which could keep a runner from
// starting.
func (Files) Answers(socket string) (bool, error) {
	conn, err := net.DialTimeout("unix", socket, answerTimeout)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, conn.Close()
}

// answerTimeout is the time limit for a runner to accept a connection.
const answerTimeout = 2 * time.Second

// Kubeconfig queries the cluster of the agent's kubeconfig.
type Kubeconfig struct {
	Path    string
	CertDir string
	Clock   clock.PassiveClock
	// Registry is checked in addition to those of the catalogue; may be empty.
	Registry string
}

// Certificate implements Cluster.
func (k *Kubeconfig) Certificate() (string, time.Time, time.Time, error) {
	if _, err := os.Stat(k.Path); err != nil {
		return "", time.Time{}, time.Time{}, err
	}
	cert, node, err := credentials.Read(k.CertDir)
	if err != nil {
		return "", time.Time{}, time.Time{}, err
	}
	return node, cert.NotBefore, cert.NotAfter, nil
}

// Mac implements Cluster.
func (k *Kubeconfig) Mac(ctx context.Context, node string) (Mac, error) {
	config, err := clientcmd.BuildConfigFromFlags("", k.Path)
	if err != nil {
		return Mac{}, err
	}
	mac := Mac{Server: config.Host}
	if err := k.skew(ctx, config, &mac); err != nil {
		return mac, err
	}
	client, err := versioned.NewForConfig(apiclient.Protobuf(config))
	if err != nil {
		return mac, err
	}
	object, err := client.RackV1alpha1().MacNodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return mac, err
	}
	mac.SerialNumber, mac.Phase = object.Spec.SerialNumber, string(object.Status.Phase)
	if q := object.Status.Quarantine; q != nil {
		mac.Quarantine = strings.TrimSpace(q.Reason + " " + q.Message)
	}
	return mac, nil
}

func (k *Kubeconfig) skew(ctx context.Context, config *rest.Config, mac *Mac) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/version", nil)
	if err != nil {
		return err
	}
	now := k.Clock.Now()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if skew, ok := credentials.ClockSkew(resp.Header.Get("Date"), now); ok {
		mac.Skew = skew
	}
	return nil
}

// Registries implements Cluster.
func (k *Kubeconfig) Registries(ctx context.Context) ([]string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", k.Path)
	if err != nil {
		return nil, err
	}
	client, err := versioned.NewForConfig(apiclient.Protobuf(config))
	if err != nil {
		return nil, err
	}
	images, err := client.ImageV1alpha1().MacOSImages().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var hosts []string
	if k.Registry != "" {
		hosts = append(hosts, k.Registry)
	}
	for _, image := range images.Items {
		host, _, _ := strings.Cut(image.Spec.Source.Reference, "/")
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// Reach implements Cluster. A registry that requires a login is reachable.
func (k *Kubeconfig) Reach(ctx context.Context, registry string) error {
	client := &http.Client{Timeout: checkTimeout / 4, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}}
	defer client.CloseIdleConnections()
	scheme := "https"
	if host := (&url.URL{Host: registry}).Hostname(); host == "localhost" || host == "127.0.0.1" {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+registry+"/v2/", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusUnauthorized {
		return fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return nil
}
