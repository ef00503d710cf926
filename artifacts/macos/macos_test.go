// Package macos tests the parts of the macOS package that do not need a Mac.
package macos

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"howett.net/plist"

	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest"
	"macrack.io/macrack/pkg/vm/guest/agent"
)

// job is the relevant part of a launchd job.
type job struct {
	Label                  string
	UserName               string
	ProgramArguments       []string
	LimitLoadToSessionType string
	RunAtLoad              bool
	KeepAlive              any
	ThrottleInterval       int
	ExitTimeOut            int
	ProcessType            string
	SoftResourceLimits     map[string]int
	StandardOutPath        string
	StandardErrorPath      string
}

func readPlist(t *testing.T, path string, into any) {
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, plist.NewDecoder(file).Decode(into), path)
}

func readJob(t *testing.T, label string) job {
	return readJobIn(t, "launchd", label)
}

func readJobIn(t *testing.T, dir, label string) job {
	path := filepath.Join(dir, label+".plist")
	var j job
	readPlist(t, path, &j)
	var all map[string]any
	readPlist(t, path, &all)
	written, err := plist.Marshal(j, plist.XMLFormat)
	require.NoError(t, err)
	var known map[string]any
	_, err = plist.Unmarshal(written, &known)
	require.NoError(t, err)
	for key := range all {
		assert.Contains(t, known, key, "%s: a key that this test does not know, or mistyped", path)
	}
	assert.Equal(t, label, j.Label)
	assert.True(t, filepath.IsAbs(j.ProgramArguments[0]))
	assert.True(t, filepath.IsAbs(j.StandardErrorPath))
	return j
}

func TestJobs(t *testing.T) {
	daemon := readJob(t, slots.AgentLabel)
	assert.True(t, daemon.RunAtLoad)
	assert.Equal(t, true, daemon.KeepAlive)
	assert.Empty(t, daemon.LimitLoadToSessionType, "it survives a logout")
	assert.NotEmpty(t, daemon.UserName, "the installer replaces it")
	assert.Equal(t, []string{"/usr/local/bin/macrack-agent", "run"}, daemon.ProgramArguments[:2])
	state := flagOf(t, daemon, "--state-dir")

	for slot := range rules.MaxVMsPerMac {
		vm := readJob(t, slots.SlotLabel(slot))
		assert.Equal(t, "Aqua", vm.LimitLoadToSessionType, "virtual machines need a login session")
		assert.False(t, vm.RunAtLoad, "the agent starts it")
		assert.Empty(t, vm.UserName)
		assert.Zero(t, vm.ThrottleInterval, "launchd may ignore less than 10 s; the agent tries again")
		assert.Equal(t, false, vm.KeepAlive, "a virtual machine that has ended is not started again")
		assert.Equal(t, []string{"/usr/local/bin/macrack-vm", "run"}, vm.ProgramArguments[:2])
		assert.Equal(t, "vz", flagOf(t, vm, "--backend"))
		dir := contract.SlotDir(flagOf(t, vm, "--slot-dir"))
		assert.Equal(t, filepath.Join(state, "slots"), filepath.Dir(string(dir)))
		assert.LessOrEqual(t, len(dir.SocketPath()), contract.MaxSocketPath)
		// The runner's log about a tenant's virtual machine is erased with the slot.
		assert.Equal(t, filepath.Join(string(dir), "runner.log"), vm.StandardErrorPath)
		assert.Equal(t, vm.StandardErrorPath, vm.StandardOutPath)
	}
	files, err := filepath.Glob("launchd/*")
	require.NoError(t, err)
	assert.Len(t, files, 1+rules.MaxVMsPerMac, "a third virtual machine has no job to run in")
}

func TestGuestJobs(t *testing.T) {
	const dir = "guest/launchd"
	system, session := readJobIn(t, dir, "io.macrack.guest-agent"), readJobIn(t, dir, "io.macrack.guest-session")
	for _, j := range []job{system, session} {
		assert.True(t, j.RunAtLoad)
		assert.Equal(t, true, j.KeepAlive)
		assert.Equal(t, "/usr/local/bin/macrack-guest-agent", j.ProgramArguments[0])
		assert.Equal(t, 65536, j.SoftResourceLimits["NumberOfFiles"], "the default of 256 is too low for builds")
		cmd := agent.NewCommand()
		require.NoError(t, cmd.ParseFlags(j.ProgramArguments[1:]))
	}
	assert.Empty(t, system.LimitLoadToSessionType, "it runs before the login")
	assert.Equal(t, "Aqua", session.LimitLoadToSessionType)
	assert.Contains(t, session.ProgramArguments, "--session")
	assert.Equal(t, fmt.Sprintf("vsock:%d", guest.SessionPort), flagOf(t, session, "--listen"))
	script, err := os.ReadFile("guest/scripts/postinstall")
	require.NoError(t, err)
	// The installer replaces these arguments by their position.
	assert.True(t, strings.HasPrefix(system.ProgramArguments[1], "--user="))
	assert.Contains(t, string(script), `"Set :ProgramArguments:1 --user=`)
	assert.True(t, strings.HasPrefix(system.ProgramArguments[2], "--session-patience="))
	assert.Contains(t, string(script), `"Set :ProgramArguments:2 --session-patience=`)
}

func flagOf(t *testing.T, j job, name string) string {
	for _, arg := range j.ProgramArguments {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			return value
		}
	}
	require.Fail(t, "no flag", "%s: %s", j.Label, name)
	return ""
}

func TestEntitlements(t *testing.T) {
	var entitlements map[string]any
	readPlist(t, "vm.entitlements", &entitlements)
	assert.Equal(t, map[string]any{"com.apple.security.virtualization": true}, entitlements, "no more than it needs")
}

func TestProfile(t *testing.T) {
	var profile struct {
		PayloadUUID    string
		PayloadContent []struct{ PayloadType, PayloadIdentifier, PayloadUUID string }
	}
	readPlist(t, "mdm/macrack-host.mobileconfig", &profile)
	seen := map[string]bool{profile.PayloadUUID: true}
	for _, payload := range profile.PayloadContent {
		assert.NotEmpty(t, payload.PayloadType)
		assert.NotEmpty(t, payload.PayloadIdentifier)
		assert.False(t, seen[payload.PayloadUUID], "%s: MDM tells payloads apart by their UUID", payload.PayloadIdentifier)
		seen[payload.PayloadUUID] = true
	}
	assert.Len(t, seen, 5)
}

func TestScripts(t *testing.T) {
	for _, path := range []string{"build.sh", "scripts/preinstall", "scripts/postinstall", "guest/scripts/postinstall"} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.NotZero(t, info.Mode()&0o100, "%s cannot be run", path)
		out, err := exec.CommandContext(t.Context(), "sh", "-n", path).CombinedOutput()
		require.NoError(t, err, "%s: %s", path, out)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Contains(t, string(text), "set -eu", path)
	}
	// The scripts install the files that the jobs name.
	script, err := os.ReadFile("scripts/postinstall")
	require.NoError(t, err)
	daemon := readJob(t, slots.AgentLabel)
	assert.Contains(t, string(script), "state="+flagOf(t, daemon, "--state-dir")+"\n")
	assert.Contains(t, string(script), "logs="+filepath.Dir(daemon.StandardErrorPath)+"\n")
	for slot := range rules.MaxVMsPerMac {
		assert.Contains(t, string(script), slots.SlotLabel(slot))
	}
	assert.Contains(t, string(script), "daemon=/Library/LaunchDaemons/"+slots.AgentLabel+".plist\n")
	assert.Contains(t, string(script), `"Set :UserName $user"`)
	assert.Contains(t, string(script), "launchctl bootstrap "+slots.AgentDomain+" ")
	assert.Contains(t, string(script), `defaults write "$sharing" bootpd -dict DHCPLeaseTimeSecs -int 600`, "or addresses run out")
	logs, err := os.ReadFile("newsyslog.conf")
	require.NoError(t, err)
	assert.Contains(t, string(logs), "\n"+daemon.StandardErrorPath+" ")
	assert.Equal(t, daemon.StandardErrorPath, daemon.StandardOutPath)
}

func TestDistribution(t *testing.T) {
	file, err := os.Open("distribution.xml")
	require.NoError(t, err)
	defer file.Close()
	for decoder := xml.NewDecoder(file); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			require.NoError(t, err)
		}
	}
}
