package doctor

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The output of macOS commands is as in their manuals and in reports of users.
func TestFacts(t *testing.T) {
	failed := exec.CommandContext(t.Context(), "false").Run()
	outputs := map[string]string{
		"/bin/launchctl managername":                   "Aqua\n",
		"/usr/bin/security show-keychain-info":         "",
		"/usr/sbin/sysctl -n hw.model":                 "Mac16,10\n",
		firewall + " --getglobalstate":                 "Firewall is disabled. (State = 0)\n",
		firewall + " --getappblocked " + agentBinary(): "Incoming connection to the application is blocked\n",
		"/usr/bin/defaults read /Library/Preferences/com.apple.SoftwareUpdate AutomaticallyInstallMacOSUpdates": "0\n",
	}
	c := Commands{Run: func(_ context.Context, name string, args ...string) ([]byte, error) {
		out, ok := outputs[name+" "+strings.Join(args, " ")]
		if !ok {
			return nil, failed
		}
		return []byte(out), nil
	}}
	f, err := c.Facts(t.Context())
	require.NoError(t, err)
	f.Networks = nil // those of the test's host
	assert.Equal(t, Facts{InLoginSession: true, Model: "Mac16,10"}, f)

	const updates = "/usr/bin/defaults read /Library/Preferences/com.apple.SoftwareUpdate AutomaticallyInstallMacOSUpdates"
	delete(outputs, updates)
	delete(outputs, "/usr/bin/security show-keychain-info")
	outputs[firewall+" --getglobalstate"] = "Firewall is enabled. (State = 1)\n"
	outputs["/usr/bin/defaults read "+vmnetPreferences+" Shared_Net_Address"] = "192.168.65.1\n"
	outputs["/usr/bin/defaults read "+vmnetPreferences+" Shared_Net_Mask"] = "255.255.0.0\n"
	f, err = c.Facts(t.Context())
	require.NoError(t, err)
	assert.True(t, f.AutomaticUpdates, "the default of macOS")
	assert.True(t, f.KeychainLocked)
	assert.True(t, f.FirewallBlocks)
	assert.Equal(t, netip.MustParsePrefix("192.168.0.0/16"), f.GuestNetwork)

	outputs[updates] = "1\n"
	outputs["/bin/launchctl managername"] = "Background\n"
	outputs[firewall+" --getappblocked "+agentBinary()] = "Incoming connection to the application is permitted\n"
	f, err = c.Facts(t.Context())
	require.NoError(t, err)
	assert.True(t, f.AutomaticUpdates)
	assert.False(t, f.FirewallBlocks)
	assert.False(t, f.InLoginSession)
	assert.False(t, f.KeychainLocked, "SSH has a keychain of its own")
}

func TestVersions(t *testing.T) {
	assert.Equal(t, 26, majorVersion("26.1.2"))
	assert.Zero(t, majorVersion("x"))
	assert.Equal(t, "26.1", minorVersion("26.1.2"))
	assert.Equal(t, "26.0", minorVersion("26"))
}
