// Package connect has the commands that connect to a virtual machine: ssh, cp and vnc. They use the
// programs of the user, and ports that are forwarded through kube-apiserver.
package connect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
)

const (
	loopback = "127.0.0.1"
	sshPort  = 22
	vncPort  = 5900

	resource     = "mi"
	defaultLogin = "admin"
	// killAfter is the time that a program has to end after an interrupt.
	killAfter = 5 * time.Second
)

// newAccess returns the access to guests; tests replace it.
type newAccess func(*cmdutil.Clients) guest.Access

// sshOptions are the flags of ssh and cp.
type sshOptions struct {
	login, identity string
	insecure        bool
}

func (o *sshOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&o.login, "login", "l", defaultLogin, "User in the guest.")
	flags.StringVarP(&o.identity, "identity", "i", "", "File of the private key. Default: those of ssh.")
	flags.BoolVar(&o.insecure, insecureFlag, false, "Accept any host key. Another machine can then pose as the guest.")
}

// instanceName returns the name in an argument such as mi/one.
func instanceName(arg string) (string, error) {
	name, ok := strings.CutPrefix(arg, resource+"/")
	if !ok || name == "" || strings.ContainsAny(name, "/:@") {
		return "", fmt.Errorf("unknown object %q; use mi/NAME for an instance", arg)
	}
	return name, nil
}

// A session is a forwarded SSH port of a guest, with its host keys.
type session struct {
	// host is the name of the guest for ssh, such as macrack.acme.one. Host macrack.* in
	// ~/.ssh/config applies to it.
	host string
	// args are the options of ssh and scp, except for the port.
	args []string
	port int
	dir  string
}

// withSession calls use with a session of an instance, which ends with it.
func withSession(ctx context.Context, env *cmdutil.Env, access newAccess, name string, o sshOptions, use func(context.Context, *session) error) (err error) {
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := open(ctx, clients, access(clients), name, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return use(ctx, s)
}

// open forwards the SSH port of an instance and writes its host keys, until close.
func open(ctx context.Context, clients *cmdutil.Clients, access guest.Access, name string, o sshOptions) (*session, error) {
	if o.login == "" || strings.HasPrefix(o.login, "-") || strings.ContainsAny(o.login, "@: ") {
		return nil, fmt.Errorf("invalid user %q in --login", o.login)
	}
	pod, err := guest.ReadPod(ctx, clients, name)
	if err != nil {
		return nil, err
	}
	s := &session{host: fmt.Sprintf("macrack.%s.%s", clients.Namespace, name)}
	knownHosts, check := os.DevNull, "no"
	if !o.insecure {
		keys, err := hostKeys(ctx, access, pod)
		if err != nil {
			return nil, err
		}
		if s.dir, err = os.MkdirTemp("", "kubectl-macrack-"); err != nil {
			return nil, err
		}
		if knownHosts, err = writeKnownHosts(s.dir, s.host, keys); err != nil {
			return nil, errors.Join(err, s.close())
		}
		check = "yes"
	}
	if s.port, err = access.Forward(ctx, pod, sshPort); err != nil {
		return nil, errors.Join(err, s.close())
	}
	for _, option := range []string{
		"HostName=" + loopback, "HostKeyAlias=" + s.host, "User=" + o.login, "StrictHostKeyChecking=" + check,
		"UserKnownHostsFile=" + quote(knownHosts), "GlobalKnownHostsFile=" + os.DevNull, "CheckHostIP=no", "UpdateHostKeys=no",
	} {
		s.args = append(s.args, "-o", option)
	}
	if o.identity != "" {
		s.args = append(s.args, "-i", o.identity)
	}
	return s, nil
}

// quote quotes a path for an option of ssh, which separates files by spaces.
func quote(path string) string {
	if strings.Contains(path, " ") {
		return `"` + path + `"`
	}
	return path
}

func (s *session) close() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// runProgram runs a program of the user with the streams of the command. Its exit code becomes that
// of the plugin.
func runProgram(ctx context.Context, env *cmdutil.Env, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%s is not in $PATH; install it", name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = env.In, env.Out, env.ErrOut
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = killAfter
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return cmdutil.ErrInterrupted
	case errors.As(err, &exit) && exit.Exited():
		return &cmdutil.ExitError{Code: exit.ExitCode()}
	}
	return err
}

func portText(port int) string { return strconv.Itoa(port) }
