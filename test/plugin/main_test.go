// Package plugin tests kubectl macrack on a real control plane: as tenants and operators, in pipes
// and in terminals.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/landlock-lsm/go-landlock/landlock"

	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/testbed"
)

var (
	tb *testbed.Testbed
	// binary is kubectl-macrack.
	binary string
)

// confined is the variable with the only TCP port to which a program may connect. The test binary
// restricts itself and then becomes the program of its arguments.
const confined = "MACRACK_TEST_PORT"

func TestMain(m *testing.M) {
	if port := os.Getenv(confined); port != "" {
		fmt.Fprintln(os.Stderr, become(port, os.Args[1:]))
		os.Exit(125)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// become replaces this process by a program that can connect to no other TCP port, and listen on
// none.
func become(port string, args []string) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	if err := landlock.V4.RestrictNet(landlock.ConnectTCP(uint16(n))); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}

func run(m *testing.M) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 25*time.Minute) // the first run on a machine builds Kubernetes
	defer cancel()
	if tb, err = testbed.Start(ctx, testbed.Options{GuestAgent: true}); err != nil {
		return 1, err
	}
	for _, folder := range []string{"kubectl-macrack", "guest-agent"} {
		program := filepath.Join(tb.Cluster.Bin(), build.Programs[folder])
		if err := build.Program(ctx, program, ".", "./cmd/"+folder); err != nil {
			return 1, errors.Join(err, tb.Stop())
		}
	}
	binary = filepath.Join(tb.Cluster.Bin(), build.Programs["kubectl-macrack"])
	code = m.Run()
	return code, tb.Stop()
}
