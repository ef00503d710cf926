package images

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"macrack.io/macrack/pkg/images/format"
)

// newTartVM writes the files of a virtual machine as "tart create" does.
func newTartVM(t *testing.T, change func(config map[string]any)) string {
	t.Helper()
	dir := t.TempDir()
	config := map[string]any{
		"version": 1, "os": "darwin", "arch": "arm64", "ecid": "ZWNpZA==", "hardwareModel": "bW9kZWw=", "diskFormat": "raw",
		"cpuCountMin": 4, "cpuCount": 4, "memorySizeMin": 4 << 30, "memorySize": 8 << 30, "macAddress": "5e:00:00:00:00:01",
		"display": map[string]any{"width": 1024, "height": 768},
	}
	if change != nil {
		change(config)
	}
	data, err := json.Marshal(config)
	require.NoError(t, err)
	for name, content := range map[string][]byte{tartConfig: data, tartDisk: []byte("disk"), tartNVRAM: []byte("nvram")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return dir
}

func TestTartVM(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"today's": nil,
		"an older tart": func(c map[string]any) {
			maps.DeleteFunc(c, func(k string, _ any) bool { return k == "os" || k == "arch" || k == "diskFormat" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newTartVM(t, change)
			var o PushOptions
			require.NoError(t, o.UseTartVM(dir))
			assert.Equal(t, PushOptions{Disk: filepath.Join(dir, "disk.img"), Aux: filepath.Join(dir, "nvram.bin"), HardwareModel: "bW9kZWw=", MachineID: "ZWNpZA=="}, o)
			size, err := Inspect(o)
			require.NoError(t, err)
			assert.EqualValues(t, 4, size)
		})
	}
}

func TestTartVMRefusals(t *testing.T) {
	set := func(key string, value any) func(map[string]any) { return func(c map[string]any) { c[key] = value } }
	for says, change := range map[string]func(map[string]any){
		`runs "linux"; MacRack runs macOS`:                 set("os", "linux"),
		`is for "amd64"; MacRack runs on arm64`:            set("arch", "amd64"),
		"(ASIF) as its disk; convert it with: diskutil":    set("diskFormat", "ASIF"),
		`has a disk of format "qcow2"`:                     set("diskFormat", "qcow2"),
		"has no hardwareModel":                             set("hardwareModel", ""),
		"the hardware model is not base64":                 set("hardwareModel", "?"),
		"has version 2 of config.json, and only version 1": set("version", 2),
		"cannot unmarshal number":                          set("os", 7),
	} {
		var o PushOptions
		require.ErrorContains(t, o.UseTartVM(newTartVM(t, change)), says)
		assert.Empty(t, o)
	}
	for says, damage := range map[string]func(t *testing.T, dir string){
		"is no virtual machine of tart": func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(dir)) },
		"no complete virtual machine":   func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, tartNVRAM))) },
		"is suspended": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, tartSuspended), nil, 0o600))
		},
		"use a file of at most": func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, tartConfig), format.MaxConfig+1))
		},
		"is not a config of tart": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, tartConfig), []byte("{"), 0o600))
		},
		"config.json is not a config of tart; use a file": func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, tartConfig)))
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, tartConfig), 0o600))
		},
	} {
		dir := newTartVM(t, nil)
		damage(t, dir)
		require.ErrorContains(t, (&PushOptions{}).UseTartVM(dir), says)
	}
}

// lockEnv makes the test program lock a file, as tart does while a virtual machine runs.
const lockEnv = "MACRACK_TEST_LOCK"

func TestTartVMRuns(t *testing.T) {
	if path := os.Getenv(lockEnv); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
		_, _ = os.Stdout.WriteString("locked\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	dir := newTartVM(t, nil)
	cmd := exec.Command(os.Args[0], "-test.run=^TestTartVMRuns$")
	cmd.Env = append(os.Environ(), lockEnv+"="+filepath.Join(dir, tartConfig))
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = stdout.Read(make([]byte, 16))
	require.NoError(t, err)
	require.ErrorContains(t, (&PushOptions{}).UseTartVM(dir), "is running; shut it down first")
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
	require.NoError(t, (&PushOptions{}).UseTartVM(dir))
}

func TestTartDir(t *testing.T) {
	home := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(home, "vms", "tahoe"), 0o700))
	for from, want := range map[string]string{
		"tahoe": filepath.Join(home, "vms", "tahoe"), "./tahoe": "tahoe", "/vms/x/": "/vms/x", ".": ".",
	} {
		dir, err := TartDir(home, from)
		require.NoError(t, err)
		assert.Equal(t, want, dir)
	}
	_, err := TartDir(home, "sonoma")
	require.ErrorContains(t, err, `tart has no virtual machine "sonoma" in `+filepath.Join(home, "vms"))
	_, err = TartDir(home, "")
	require.Error(t, err)
	_, err = TartDir(home, strings.Repeat("x", 10_000))
	require.NoError(t, err, "a name that is too long is reported when its files are read")
}
