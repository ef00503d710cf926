package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"macrack.io/macrack/pkg/plugin/guest"
)

const (
	// maxHostKeys is the maximum size of the host keys of a guest, in bytes.
	maxHostKeys  = 64 << 10
	insecureFlag = "insecure-host-key"
)

// readKeys prints the public host keys of the guest.
var readKeys = []string{"sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"}

// hostKeys returns the public host keys of a guest, as its guest agent reads them. The connection
// to the guest agent does not use the network of the guest: it is authenticated by the certificates
// of the cluster, and ends in the virtual machine of the pod.
func hostKeys(ctx context.Context, access guest.Access, pod guest.Pod) ([]ssh.PublicKey, error) {
	out, problems := &limited{left: maxHostKeys}, &limited{left: maxHostKeys}
	err := access.Exec(ctx, pod, readKeys, guest.Streams{Out: out, Err: problems})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var keys []ssh.PublicKey
	for rest := out.Bytes(); len(rest) > 0; {
		key, _, _, next, parseErr := ssh.ParseAuthorizedKey(rest)
		if parseErr != nil {
			break
		}
		keys, rest = append(keys, key), next
	}
	if len(keys) > 0 {
		return keys, nil
	}
	if err == nil {
		err = errors.New("no key found")
	}
	return nil, fmt.Errorf("the guest agent reports no SSH host keys: %w; enable Remote Login in the image, or connect without a check with --%s", err, insecureFlag)
}

// limited is a buffer that drops what exceeds its limit.
type limited struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer.
func (l *limited) Write(data []byte) (int, error) {
	kept := data[:min(len(data), l.left)]
	l.left -= len(kept)
	_, err := l.Buffer.Write(kept)
	return len(data), err
}

// writeKnownHosts writes a file of known hosts with the keys of one host into a folder.
func writeKnownHosts(dir, host string, keys []ssh.PublicKey) (string, error) {
	var lines bytes.Buffer
	for _, key := range keys {
		fmt.Fprintln(&lines, knownhosts.Line([]string{host}, key))
	}
	file := filepath.Join(dir, "known_hosts")
	return file, os.WriteFile(file, lines.Bytes(), 0o600)
}
