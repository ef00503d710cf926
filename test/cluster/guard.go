package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// guardScript waits until its standard input ends, which the system sees to when the program at the other end dies, and then ends what
// runs from $BIN with a path in $DIR on its command line.
const guardScript = `cat >/dev/null
ps -axww -o pid=,args= | while read -r pid args; do
	case "$args" in "$BIN"/*"$DIR"/*) kill -9 "$pid" ;; esac
done
[ -z "$REMOVE" ] || rm -rf "$DIR"`

// guard has the cluster end with this program, also when the program has no time to say so: a test that is killed or runs out of time.
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

// release ends the guard after all else has ended.
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
