package guest

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"
)

// sizes are the sizes of a terminal: the current one, and each new one.
type sizes struct {
	ctx      context.Context
	terminal *os.File
	changed  chan os.Signal
}

func watchSize(ctx context.Context, terminal *os.File) *sizes {
	s := &sizes{ctx: ctx, terminal: terminal, changed: make(chan os.Signal, 1)}
	s.changed <- syscall.SIGWINCH // the first size
	signal.Notify(s.changed, syscall.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(s.changed) })
	return s
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *sizes) Next() *remotecommand.TerminalSize {
	select {
	case <-s.ctx.Done():
		return nil
	case <-s.changed:
	}
	width, height, err := term.GetSize(int(s.terminal.Fd()))
	if err != nil {
		return nil
	}
	return &remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)}
}
