package cluster

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

// guard ends the cluster with this program, even if a test is killed or runs out of time.
func (c *Cluster) guard() error {
	if c.opts.Detach || c.guardPipe != nil {
		return nil
	}
	cmd := exec.Command("/bin/sh", "-c", guardScript)
	cmd.Env = append(os.Environ(), "BIN="+c.bin, "DIR="+c.dir, "REMOVE=")
	if c.temporary {
		cmd.Env = append(cmd.Env, "REMOVE=yes")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the guard of %s: %w", c.dir, err)
	}
	c.guardPipe, c.guardEnded = pipe, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(c.guardEnded)
	}()
	return nil
}

// release ends the guard after everything else has ended.
func (c *Cluster) release() error {
	if c.guardPipe == nil {
		return nil
	}
	err := c.guardPipe.Close()
	<-c.guardEnded
	c.guardPipe = nil
	return err
}

// guardState is the guard's part of a Cluster.
type guardState struct {
	guardPipe  io.WriteCloser
	guardEnded chan struct{}
}
