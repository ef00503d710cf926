package tart

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"macrack.io/macrack/pkg/vm/guest"
)

// setupScript does a part of a setup in the guest. See the file.
//
//go:embed setup.sh
var setupScript string

const (
	// lostCode is the exit code of setup.sh for a startup script that ended without a result.
	lostCode = 75
	// notEnded is the exit code of a startup script that has not exited by itself.
	notEnded = 255
)

// uidPattern is the form of an instance's UID, which becomes the name of a directory.
var uidPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// Setup implements guest.Agent. The guest keeps the state of the setup in the home directory of the
// agent's user, so that the startup script runs once, even if the guest or its agent restarts.
func (c *Client) Setup(ctx context.Context, setup guest.Setup, offset int64, output func([]byte)) (*guest.SetupResult, error) {
	if !uidPattern.MatchString(setup.InstanceUID) {
		return nil, fmt.Errorf("invalid instance UID %q", setup.InstanceUID)
	}
	if keys := setup.SSHAuthorizedKeys; len(keys) > 0 {
		if strings.ContainsAny(strings.Join(keys, ""), "\r\n") {
			return nil, errors.New("failed to install the SSH keys: a key has more than one line")
		}
		if _, err := c.part(ctx, "keys", setup.InstanceUID, strings.Join(keys, "\n")+"\n", nil); err != nil {
			return nil, fmt.Errorf("failed to install the SSH keys: %w", err)
		}
	}
	if setup.StartupScript == "" {
		return &guest.SetupResult{}, nil
	}
	variables := environment(setup)
	if _, err := c.part(ctx, "start", setup.InstanceUID, variables+setup.StartupScript, nil, strconv.Itoa(len(setup.StartupScript)), strconv.Itoa(len(variables))); err != nil {
		return nil, fmt.Errorf("failed to start the startup script: %w", err)
	}
	text, err := c.part(ctx, "follow", setup.InstanceUID, "", output, strconv.FormatInt(max(offset, 0), 10), strconv.Itoa(guest.MaxScriptOutput))
	if failed := (*failure)(nil); errors.As(err, &failed) && failed.code == lostCode {
		return &guest.SetupResult{ExitCode: notEnded, Reason: "the guest was restarted while the startup script ran; the script is not repeated"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to follow the startup script: %w", err)
	}
	code, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("failed to follow the startup script: invalid exit code %q", text)
	}
	return &guest.SetupResult{ExitCode: int32(code)}, nil
}

// cachesDir is the directory in which macOS mounts the caches that the host shares.
const cachesDir = "/Volumes/My Shared Files"

// environment returns the variables of the startup script as quoted words NAME=VALUE of a shell.
// They reach the guest as input of setup.sh, which does not store them.
func environment(setup guest.Setup) string {
	var words strings.Builder
	add := func(name, value string) {
		words.WriteString(" '" + strings.ReplaceAll(name+"="+value, "'", `'\''`) + "'")
	}
	if setup.Caches {
		add("MACRACK_CACHES", cachesDir)
	}
	for _, v := range setup.Environment {
		add(v.Name, string(v.Value))
	}
	return words.String()
}

// part runs a part of setup.sh, and returns its error output.
func (c *Client) part(ctx context.Context, name, uid, stdin string, output func([]byte), args ...string) (string, error) {
	command := guest.Command{Args: append([]string{"/bin/sh", "-c", setupScript, "macrack-setup", name, uid}, args...)}
	if stdin != "" {
		command.Stdin = strings.NewReader(stdin)
	}
	if output != nil {
		command.Stdout = writer(output)
	}
	return c.run(ctx, command)
}

type writer func([]byte)

func (w writer) Write(data []byte) (int, error) {
	w(data)
	return len(data), nil
}
