package session

import (
	"context"
	"fmt"
	"io"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	utilexec "k8s.io/utils/exec"

	"macrack.io/macrack/pkg/vm/guest"
)

// Exec runs a command in the guest of a pod's virtual machine.
func (s *Sessions) Exec(ctx context.Context, namespace, name, container string, command []string, io api.AttachIO) error {
	return s.open(ctx, namespace, name, func(ctx context.Context, c guest.Agent) error {
		code, err := c.Exec(ctx, guest.Command{
			Args: command, Stdin: io.Stdin(), Stdout: writer(io.Stdout()), Stderr: writer(io.Stderr()),
			TTY: io.TTY(), Resize: sizes(ctx, io),
		})
		if err == nil && code != 0 {
			return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
		}
		return err
	})
}

// writer returns nil for a missing stream; a nil WriteCloser in an io.Writer would not equal nil.
func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

func sizes(ctx context.Context, io api.AttachIO) <-chan guest.Size {
	if !io.TTY() {
		return nil
	}
	sizes := make(chan guest.Size)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-io.Resize():
				select {
				case <-ctx.Done():
					return
				case sizes <- guest.Size{Columns: s.Width, Rows: s.Height}:
				}
			}
		}
	}()
	return sizes
}
