package runner

import (
	"bytes"
	"fmt"
	"os"
	"sync"

	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// maxConsole bounds the console's file, in bytes, because a guest may print endlessly.
	maxConsole = 8 << 20
	// lastLine is the room for the last line of a full console, in bytes.
	lastLine = 128
	// maxLine is the length at which a line is split, in bytes.
	maxLine = 16 << 10
)

// Console is the console file of a VM, which its tenant can read. Each line has the time of its
// arrival.
type Console struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	file    *os.File
	size    int64
	partial []byte // an unfinished line
}

// OpenConsole opens or creates the file at path.
func OpenConsole(path string, clk clock.PassiveClock) (*Console, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &Console{clock: clk, file: file, size: info.Size()}, nil
}

// Printf writes a line of the runner.
func (c *Console) Printf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLine()
	c.line(fmt.Appendf(nil, format, args...))
}

// Write writes output of the guest. It never fails, because a console error must not end a VM.
func (c *Console) Write(data []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.partial = append(c.partial, data...)
	for {
		i := bytes.IndexByte(c.partial, '\n')
		switch {
		case i >= 0:
			c.line(bytes.TrimSuffix(c.partial[:i], []byte("\r")))
			c.partial = c.partial[i+1:]
		case len(c.partial) >= maxLine:
			c.line(c.partial[:maxLine])
			c.partial = c.partial[maxLine:]
		default:
			return len(data), nil
		}
	}
}

func (c *Console) endLine() {
	if len(c.partial) > 0 {
		c.line(c.partial)
		c.partial = nil
	}
}

func (c *Console) line(text []byte) {
	if c.size >= maxConsole {
		return
	}
	line := c.clock.Now().UTC().AppendFormat(nil, contract.ConsoleTime)
	line = append(append(append(line, ' '), text...), '\n')
	if c.size += int64(len(line)); c.size > maxConsole-lastLine {
		line = fmt.Appendf(nil, "%s the console is full; further output is dropped\n", c.clock.Now().UTC().Format(contract.ConsoleTime))
		c.size = maxConsole
	}
	_, _ = c.file.Write(line)
}

// Close closes the file of the console.
func (c *Console) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLine()
	c.size = maxConsole
	_ = c.file.Close()
}
