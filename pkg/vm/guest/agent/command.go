package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/version"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/vsock"
)

// searchPath is the PATH of commands.
const searchPath = "/usr/local/bin:/opt/homebrew/bin:/usr/bin:/bin:/usr/sbin:/sbin"

type options struct {
	listen          string
	stateDir        string
	user            string
	home            string
	shutdownCommand string
	addresses       []string
	confine         bool
	exitWithStdin   bool
	inSession       bool
	sessionPatience time.Duration
	growDisk        bool
	caches          string
	cacheSource     string
	confineTo       []string
	confineReading  []string
}

// NewCommand returns the command macrack-guest-agent.
func NewCommand() *cobra.Command {
	o := &options{
		listen: "vsock:" + strconv.Itoa(guest.Port), stateDir: "/var/lib/macrack", shutdownCommand: "/sbin/shutdown -h now",
	}
	if runtime.GOOS == "darwin" {
		o.stateDir, o.growDisk = "/var/db/macrack", true
		o.caches, o.cacheSource = "/Users/Shared/macrack-caches", "/Volumes/My Shared Files"
	}
	cmd := &cobra.Command{
		Use:          "macrack-guest-agent",
		Short:        "Run the guest agent of a MacRack virtual machine",
		Version:      version.String(),
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer cancel()
			return o.run(ctx)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", o.listen, "Address to listen on for the host: vsock:PORT or unix:PATH.")
	flags.StringVar(&o.stateDir, "state-dir", o.stateDir, "Directory of the state that survives a restart of the guest, such as the result of the startup script.")
	flags.StringVar(&o.user, "user", o.user, "User of commands, of the startup script and of the instance's SSH keys. Default: the user of this program.")
	flags.StringVar(&o.home, "home", o.home, "Home and working directory of commands. Default: the user's.")
	flags.StringVar(&o.shutdownCommand, "shutdown-command", o.shutdownCommand, "Command that shuts the guest down. If empty, this program exits with code 0 instead.")
	flags.StringSliceVar(&o.addresses, "addresses", o.addresses, "IP addresses to report. Default: those of the network interfaces.")
	flags.BoolVar(&o.confine, "confine", o.confine, "Confine commands to --home and --state-dir, without network access, as far as Landlock can. For simulated guests, whose commands run on the host. Without Landlock, commands are refused.")
	flags.BoolVar(&o.exitWithStdin, "exit-with-stdin", o.exitWithStdin, "Exit when the standard input ends.")
	flags.BoolVar(&o.inSession, "session", o.inSession, "Run as the agent of the user's login session: it runs commands, and leaves the rest to the system agent.")
	flags.DurationVar(&o.sessionPatience, "session-patience", o.sessionPatience, "How long after a boot a login session is expected, for images with automatic login. Until then, the guest is not ready.")
	flags.BoolVar(&o.growDisk, "grow-disk", o.growDisk, "Grow the APFS container to the size of the disk before the startup script. Requires macOS.")
	flags.StringVar(&o.caches, "caches", o.caches, "Directory of the lease's caches, for the variable MACRACK_CACHES of the startup script. It becomes a symbolic link to --cache-source.")
	flags.StringVar(&o.cacheSource, "cache-source", o.cacheSource, "Directory in which the system mounts the directories that the host shares. If empty, --caches exists already.")
	flags.StringSliceVar(&o.confineTo, "confine-to", o.confineTo, "Further directories of confined commands.")
	flags.StringSliceVar(&o.confineReading, "confine-reading", o.confineReading, "Further directories that confined commands can read.")
	return cmd
}

func (o *options) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := os.Setenv("PATH", searchPath); err != nil {
		return err
	}
	if o.inSession && o.user != "" {
		return errors.New("--session and --user exclude each other: the session has a user")
	}
	shell, err := UserShell(o.user, o.home)
	if err != nil {
		return fmt.Errorf("--user: %w", err)
	}
	config := Config{
		Version: version.Version, StateDir: o.stateDir, Shell: shell, Clock: clock.RealClock{}, Shutdown: o.shutdown(cancel), InSession: o.inSession,
	}
	if o.inSession {
		shell.InheritEnv(os.Environ())
	} else {
		config.Session = &Session{Socket: shell.SessionSocket(), Port: guest.SessionPort, Patience: o.sessionPatience}
	}
	if o.growDisk && !o.inSession {
		config.GrowDisk = (&diskGrower{run: runCommand}).grow
	}
	if o.caches != "" {
		config.Caches = &Caches{Dir: o.caches, Source: o.cacheSource}
	}
	if len(o.addresses) > 0 {
		if config.Addresses, err = fixed(o.addresses); err != nil {
			return fmt.Errorf("--addresses: %w", err)
		}
	}
	if !o.inSession {
		if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
			return err
		}
	}
	if o.confine {
		shell.Env = append(shell.Env, "TMPDIR="+shell.Home)
		sockets := filepath.Dir(strings.TrimPrefix(o.listen, "unix:"))
		if err := Confine(sockets, append([]string{shell.Home, o.stateDir}, o.confineTo...), o.confineReading); err != nil {
			klog.ErrorS(err, "Commands refused")
			config.Shell, config.Script = nil, refuseScript
		}
	}
	listener, err := o.listener()
	if err != nil {
		return err
	}
	listeners := []net.Listener{listener}
	if o.inSession {
		if listener, err = listenInSession(shell.SessionSocket()); err != nil {
			return err
		}
		listeners = append(listeners, listener)
	}
	agent, err := New(config)
	if err != nil {
		return err
	}
	if o.exitWithStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	klog.InfoS("Guest agent serving", "version", version.Version, "listen", o.listen, "user", o.user)
	return agent.Serve(ctx, listeners...)
}

func refuseScript(_ context.Context, _ string, _ []string, output func([]byte)) int32 {
	output([]byte("the script was not run: this host cannot confine it\n"))
	return notEnded
}

func (o *options) listener() (net.Listener, error) {
	kind, where, _ := strings.Cut(o.listen, ":")
	switch kind {
	case "unix":
		return listenUnix(where)
	case "vsock":
		port, err := strconv.ParseUint(where, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--listen: port: %w", err)
		}
		return vsock.Listen(uint32(port))
	default:
		return nil, fmt.Errorf("invalid --listen %q; use vsock:PORT or unix:PATH", o.listen)
	}
}

// listenUnix listens on a socket that only this user and root can connect to.
func listenUnix(path string) (net.Listener, error) {
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return net.Listen("unix", path)
}

func (o *options) shutdown(end context.CancelFunc) func() {
	args := strings.Fields(o.shutdownCommand)
	if len(args) == 0 {
		return end
	}
	return func() {
		if output, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			klog.ErrorS(err, "Failed to shut the guest down", "command", o.shutdownCommand, "output", string(output))
		}
	}
}

func fixed(texts []string) (func() ([]netip.Addr, error), error) {
	var addresses []netip.Addr
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return func() ([]netip.Addr, error) { return addresses, nil }, nil
}
