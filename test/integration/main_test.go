// Package integration tests macrack as its users do: with kubectl and clients, through a real
// kube-apiserver, on the testbed. Tests wait for conditions, never for a fixed time.
package integration

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"macrack.io/macrack/test/testbed"
)

// tb is the testbed of all tests. Each test leaves its Macs free: see reset.
var tb *testbed.Testbed

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 25*time.Minute) // the first run on a machine builds Kubernetes
	defer cancel()
	if tb, err = testbed.Start(ctx, testbed.Options{}); err != nil {
		return 1, err
	}
	code = m.Run()
	if code != 0 {
		keepLogs()
	}
	return code, tb.Stop()
}

// keepLogs copies the logs of a testbed on which tests failed.
func keepLogs() {
	dir, err := os.MkdirTemp("", "macrack-integration-logs-")
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(tb.Cluster.Dir()+"/log"))
	}
	fmt.Fprintln(os.Stderr, "logs of the testbed:", dir, err)
}
