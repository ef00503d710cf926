package process

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// guardScript waits for the end of its standard input, which the system closes when the program at
// the other end dies. Then it ends the programs from $BIN that have a path in $DIR on their command
// line.
const guardScript = `cat >/dev/null
ps -axww -o pid=,args= | while read -r pid args; do
	case "$args" in "$BIN"/*"$DIR"/*) kill -9 "$pid" ;; esac
done
[ -z "$REMOVE" ] || rm -rf "$DIR"`

// A Guard ends processes with this program, even if it is killed.
type Guard struct {
	pipe  io.WriteCloser
	ended chan struct{}
}

// NewGuard guards the processes of programs in bin with a path in dir on their command line. If
// remove is set, it also removes dir.
func NewGuard(bin, dir string, remove bool) (*Guard, error) {
	cmd := exec.Command("/bin/sh", "-c", guardScript)
	cmd.Env = append(os.Environ(), "BIN="+bin, "DIR="+dir, "REMOVE=")
	if remove {
		cmd.Env = append(cmd.Env, "REMOVE=yes")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the guard of %s: %w", dir, err)
	}
	g := &Guard{pipe: pipe, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(g.ended)
	}()
	return g, nil
}

// Release ends the guard after everything else has ended.
func (g *Guard) Release() error {
	err := g.pipe.Close()
	<-g.ended
	return err
}
