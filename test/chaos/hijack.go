package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster/process"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
)

// Hijack is the process of a foreign user. It listens at a socket in place of a runner, and claims
// to run the requested instance.
func Hijack(ctx context.Context, socket, uid string) error {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		return err
	}
	fmt.Println("listening")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(contract.State{InstanceUID: uid, VM: contract.VMRunning, PID: os.Getpid(), GuestReady: true})
	}), ReadHeaderTimeout: time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

const nobody = 65534

// hijacker runs Hijack as an unprivileged user.
func (m *mac) hijacker(dir contract.SlotDir, uid string) (stop func(), err error) {
	// The permissions of the folders have been opened by mistake.
	for path := string(dir); path != "/" && len(path) > len("/tmp"); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o777); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(m.binaries, 0o755); err != nil {
		return nil, err
	}
	foreign := &process.Child{
		Name: "the hijacker", Program: filepath.Join(m.binaries, "chaos"), Args: []string{"hijack", dir.SocketPath(), uid}, Prints: "listening",
		Attributes: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
	}
	return foreign.Kill, foreign.Start()
}

// hijack listens as a foreign user at the sockets of a free slot and of a running VM. Only root can
// switch to another user.
func hijack(ctx context.Context, r *run) error {
	if os.Geteuid() != 0 {
		fmt.Fprintln(r.Out, "hijack: skipped; it needs root to switch to another user")
		return nil
	}
	r.fault("a foreign process at the socket of a free slot", func() error {
		r.mac.agent.Kill()
		stop, err := r.mac.hijacker(r.mac.slot(0), "made-up")
		if err != nil {
			return err
		}
		defer stop()
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
		if _, err := r.two(ctx); err != nil {
			return err
		}
		info, err := os.Stat(string(r.mac.slot(0)))
		if err == nil && info.Mode().Perm() != 0o700 {
			err = fmt.Errorf("the slot has mode %04o", info.Mode().Perm())
		}
		return err
	})
	if err := r.clear(ctx); err != nil {
		return err
	}
	i, err := r.start(ctx)
	if err != nil {
		return err
	}
	r.fault("a foreign process at the socket of a running VM", func() error {
		slot := r.mac.vms(ctx)[0].slot
		pids := r.mac.runners()
		r.mac.agent.Kill()
		stop, err := r.mac.hijacker(r.mac.slot(slot), string(i.UID))
		if err != nil {
			return err
		}
		defer stop()
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
		// The VM continues to run but cannot be reached: this must be reported, and nothing else
		// may happen.
		if err := r.quarantined(ctx, rackv1alpha1.ReasonCannotReattach); err != nil {
			return err
		}
		still, err := r.get(ctx, i.Name)
		if err != nil {
			return err
		}
		if still.Status.Phase != instancev1alpha1.MacOSInstanceRunning || len(r.mac.runners()) != 1 || r.mac.runners()[0] != pids[0] {
			return fmt.Errorf("%s is %s: %s; processes %v, now %v", i.Name, still.Status.Phase, still.Status.Message, pids, r.mac.runners())
		}
		stop()
		r.mac.killRunners(pids...)
		if _, err := r.ends(ctx, i.Name); err != nil {
			return err
		}
		return errors.Join(r.unquarantine(ctx), r.settle(ctx))
	})
	return r.clear(ctx)
}
