package acceptance

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/guest/guesttest"
	"macrack.io/macrack/pkg/vm/runner"
	"macrack.io/macrack/pkg/vm/sim"
)

// hostEnv is the simulated host of a runner.
const hostEnv = "MACRACK_TEST_HOST"

// TestMain is also macrack-vm and the guest agent.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "run" {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		backend := &sim.Backend{Host: sim.HostDir(os.Getenv(hostEnv)), Clock: clock.RealClock{}, GuestAgent: []string{self, "guest-agent"}, Network: true}
		if _, err := runner.Run(context.Background(), contract.SlotDir(os.Args[3]), backend, clock.RealClock{}); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	guesttest.Main(m)
}

// newConfig returns the configuration of a simulated Mac. answers are those of a person, by title.
func newConfig(t *testing.T, answers map[string]Answer) Config {
	t.Helper()
	root, err := os.MkdirTemp("", "acc")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	simulated := sim.HostDir(filepath.Join(root, "host"))
	require.NoError(t, simulated.Init("C02TEST", "boot-1"))
	t.Setenv(hostEnv, string(simulated))
	self, err := os.Executable()
	require.NoError(t, err)
	store := &images.Simulated{Dir: filepath.Join(root, "images"), Clock: clock.RealClock{}}
	image, err := store.Ensure(t.Context(), images.Image{Name: "macos", Digest: "sha256:26", DiskSize: 1 << 20}, images.Needs{})
	require.NoError(t, err)
	image.HardwareModel = "bW9kZWw="
	return Config{
		Dir: filepath.Join(root, "a"), Launcher: &slots.Process{Binary: self}, Host: &host.Simulated{Dir: simulated, StateDir: root},
		NewMachineID: func(context.Context) (string, error) { return sim.NewMachineID(), nil },
		Image:        image, CPU: 4, Memory: 8 << 30, DiskSize: 2 << 20, Clock: clock.RealClock{},
		BootTimeout: time.Minute, Grace: time.Minute, Repeat: 2, Commands: 20,
		Ask: func(_ context.Context, title, _ string) Answer {
			answer, ok := answers[title]
			if !ok {
				return Answer{Outcome: Ask}
			}
			return answer
		},
	}
}

func outcomes(r *Report) map[string]Outcome {
	all := map[string]Outcome{}
	for _, result := range r.Results {
		all[result.ID] = result.Outcome
	}
	return all
}

func ids(checks []Check) []string {
	var all []string
	for _, check := range checks {
		all = append(all, check.ID)
	}
	return all
}

// The acceptance passes on a simulated Mac, and continues after a reboot.
func TestAcceptance(t *testing.T) {
	yes := Answer{Outcome: Pass}
	config := newConfig(t, map[string]Answer{
		"Host facts and boot ID (`pkg/agent/host`)": yes, "Sleep and wake": yes, "Upgrade": {Outcome: Skip, Note: "no package here"},
		"Terminals": {Outcome: Fail, Note: "the size does not follow"},
	})
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	config.Registry = strings.TrimPrefix(server.URL, "http://") + "/acceptance"
	dir := t.TempDir()
	report := &Report{Started: time.Now()}
	require.NoError(t, Run(t.Context(), config, report, func(r *Report) error { return r.Write(dir) }))
	want := map[string]Outcome{
		"doctor": Skip, "keychain": Skip, "inside-shutdown": Skip, "upgrade": Skip, "reboot": Pending, "guest-terminals": Fail,
	}
	for _, check := range Checks() {
		switch {
		case want[check.ID] != "":
		case check.ID == "clones":
			want[check.ID] = report.find("clones").Outcome // depends on the file system
			assert.Contains(t, []Outcome{Pass, Skip}, want[check.ID])
		case check.Run != nil:
			want[check.ID] = Pass
		default:
			want[check.ID] = Ask
		}
	}
	for _, result := range report.Results {
		assert.Equal(t, want[result.ID], result.Outcome, "%s: %s\n%s", result.ID, result.Message, result.Log)
	}
	assert.Len(t, report.Results, len(Checks()))
	assert.Equal(t, []string{"guest-terminals"}, report.Failed())
	assert.Equal(t, "20", strings.Fields(report.find("descriptors").Measured["descriptors"])[4])
	running, err := sim.HostDir(os.Getenv(hostEnv)).RunningVMs()
	require.NoError(t, err)
	assert.Zero(t, running, "no virtual machine is left")

	read, err := ReadReport(dir)
	require.NoError(t, err)
	assert.Equal(t, outcomes(report), outcomes(read))
	markdown, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	assert.Contains(t, string(markdown), "| fail | guest-terminals |")
	assert.NotContains(t, string(markdown), "C02TEST", "the report can be published")

	require.NoError(t, sim.HostDir(os.Getenv(hostEnv)).Reboot("boot-2"))
	var asked []string
	config.Ask = func(_ context.Context, title, _ string) Answer {
		asked = append(asked, title)
		return Answer{Outcome: Ask}
	}
	require.NoError(t, Run(t.Context(), config, read, func(*Report) error { return nil }))
	assert.Equal(t, Pass, read.find("reboot").Outcome)
	assert.NotContains(t, asked, "Sleep and wake", "what passed is not repeated")
	assert.Contains(t, asked, "Terminals")
}

// Each fault of a host fails the check that looks for it.
func TestFaultsAreFound(t *testing.T) {
	for name, test := range map[string]struct {
		check   string
		damage  func(t *testing.T, c *Config)
		message string
	}{
		"kernel without limit": {check: "third-vm", message: "not with the kernel's refusal", damage: func(t *testing.T, c *Config) {
			c.Launcher = &otherHost{t, c.Launcher}
		}},
		"leaks": {check: "kills", message: "after 2 kills", damage: func(t *testing.T, _ *Config) {
			require.NoError(t, sim.HostDir(os.Getenv(hostEnv)).LeakOnStart(true))
		}},
		"guest that ignores the shutdown": {check: "stop", message: "want Stopped", damage: asGuest(contract.Simulation{IgnoreShutdown: true})},
		"guest that never responds": {check: "boot", message: "did not respond within", damage: func(t *testing.T, c *Config) {
			c.BootTimeout = 200 * time.Millisecond
			asGuest(contract.Simulation{NeverReady: true})(t, c)
		}},
		"guest that crashes": {check: "restarts", message: "ended: Crashed", damage: asGuest(contract.Simulation{CrashAfterMillis: 1, NeverReady: true})},
		"no serial number":   {check: "host-facts", message: "a fact of the host is empty", damage: func(_ *testing.T, c *Config) { c.Host = noHost{} }},
		"locked keychain": {check: "keychain", message: "the login keychain is locked; run security unlock-keychain", damage: func(_ *testing.T, c *Config) {
			c.KeychainLocked = func(context.Context) (bool, error) { return true, nil }
		}},
		"keychain of another session": {check: "keychain", message: "exit status 50; run the acceptance in Terminal", damage: func(_ *testing.T, c *Config) {
			c.KeychainLocked = func(context.Context) (bool, error) { return false, errors.New("exit status 50") }
		}},
		"start that fails": {check: "socket", message: "ended: StartFailed", damage: asGuest(contract.Simulation{
			StartError: &contract.Error{Domain: "VZErrorDomain", Code: 1, Message: "-25308"},
		})},
	} {
		t.Run(name, func(t *testing.T) {
			config := newConfig(t, nil)
			if test.check == "stop" {
				config.Grace = time.Second
			}
			test.damage(t, &config)
			config.Only = []string{test.check}
			report := &Report{}
			require.NoError(t, Run(t.Context(), config, report, func(*Report) error { return nil }))
			result := report.find(test.check)
			assert.Equal(t, Fail, result.Outcome)
			assert.Contains(t, result.Message, test.message)
			assert.Equal(t, []string{test.check}, report.Failed())
			if test.check == "boot" {
				assert.Contains(t, result.Log, "console.log of boot")
			}
		})
	}
}

func TestUnlockedKeychain(t *testing.T) {
	config := newConfig(t, nil)
	config.Only = []string{"keychain"}
	config.KeychainLocked = func(context.Context) (bool, error) { return false, nil }
	report := &Report{}
	require.NoError(t, Run(t.Context(), config, report, func(*Report) error { return nil }))
	assert.Equal(t, Pass, report.find("keychain").Outcome)
}

// The checks of guests also pass with tart's guest agent.
func TestTartAgent(t *testing.T) {
	config := newConfig(t, nil)
	asGuest(contract.Simulation{TartAgent: true})(t, &config)
	config.Only = []string{"boot", "exec", "setup", "stop"}
	report := &Report{}
	require.NoError(t, Run(t.Context(), config, report, func(*Report) error { return nil }))
	require.Len(t, report.Results, len(config.Only))
	for _, result := range report.Results {
		assert.Equal(t, Pass, result.Outcome, "%s: %s", result.ID, result.Message)
	}
	assert.Equal(t, "Tart", report.find("boot").Measured["guest agent"])
}

// Without a person, questions stay open.
func TestNobodyAnswers(t *testing.T) {
	config := newConfig(t, nil)
	config.Ask, config.Only = nil, []string{"host-facts", "sleep", "guest-terminals"}
	report := &Report{}
	require.NoError(t, Run(t.Context(), config, report, func(*Report) error { return nil }))
	assert.Equal(t, map[string]Outcome{"host-facts": Ask, "sleep": Ask, "guest-terminals": Ask}, outcomes(report))
	assert.Contains(t, report.find("sleep").Message, "pmset sleepnow")
}

func asGuest(s contract.Simulation) func(*testing.T, *Config) {
	return func(t *testing.T, _ *Config) {
		require.NoError(t, sim.HostDir(os.Getenv(hostEnv)).SetGuest(s))
	}
}

type noHost struct{}

func (noHost) Info() (host.Info, error) { return host.Info{}, nil }

// otherHost starts the third virtual machine on another host, whose kernel does not refuse it.
type otherHost struct {
	t *testing.T
	slots.Launcher
}

func (o *otherHost) Launch(dir contract.SlotDir) (<-chan error, error) {
	if filepath.Base(string(dir)) == outsideSlot {
		spec, err := dir.ReadSpec()
		require.NoError(o.t, err)
		return nil, contract.WriteJSON(dir.ResultPath(), contract.Result{InstanceUID: spec.InstanceUID, Reason: contract.ExitStartFailed})
	}
	return o.Launcher.Launch(dir)
}

func TestUnknownCheck(t *testing.T) {
	err := Run(t.Context(), Config{Only: []string{"none"}}, &Report{}, nil)
	require.ErrorContains(t, err, `unknown check "none"`)
	full := errors.New("disk full")
	config := newConfig(t, nil)
	config.Only = []string{"zeros"}
	require.ErrorIs(t, Run(t.Context(), config, &Report{}, func(*Report) error { return full }), full)
}

func TestDamagedReport(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "report.json"), []byte("{"), 0o600))
	_, err := ReadReport(dir)
	require.ErrorContains(t, err, "remove the file to start again")
}

// A guest's log cannot break out of its block in the report.
func TestMarkdown(t *testing.T) {
	r := &Report{Results: []Result{{ID: "a", Outcome: Fail, Message: "x | y\nz", Log: "```\n# heading\n| cell |"}}}
	markdown := r.Markdown()
	assert.Contains(t, markdown, `| fail | a | 0.0 | x \| y z |`)
	assert.Contains(t, markdown, "    ```\n    # heading\n    | cell |\n")
}

var update = flag.Bool("update", false, "write the generated parts of the documentation")

func TestDocumentation(t *testing.T) {
	all := ids(Checks())
	slices.Sort(all)
	assert.Equal(t, slices.Compact(slices.Clone(all)), all, "IDs are unique")
	for _, page := range []Page{PageMacs, PageGuests} {
		path := filepath.Join("../../../docs", string(page))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		want, err := replace(string(data), Documentation(page))
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
			continue
		}
		assert.True(t, want == string(data), "%s differs; run go test ./pkg/agent/acceptance -update", path)
	}
	for _, check := range Checks() {
		assert.NotEmpty(t, check.Steps, check.ID)
		assert.NotEmpty(t, check.Expected, check.ID)
	}
	_, err := replace("no markers", "")
	require.Error(t, err)
}
