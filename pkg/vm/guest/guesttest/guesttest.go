// Package guesttest lets a test program be the guest agent of simulated guests.
package guesttest

import (
	"os"
	"testing"

	guestagent "macrack.io/macrack/pkg/vm/guest/agent"
)

// command is the first argument that makes a test program the guest agent.
const command = "guest-agent"

// Main is for a TestMain: it runs the tests, or the guest agent in a program that was started by Command.
func Main(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != command {
		os.Exit(m.Run())
	}
	cmd := guestagent.NewCommand()
	cmd.SetArgs(os.Args[2:])
	if cmd.Execute() != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns the command that runs the guest agent, which is the test program itself.
func Command(t testing.TB) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, command}
}
