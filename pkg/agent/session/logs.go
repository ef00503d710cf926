package session

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"

	"macrack.io/macrack/pkg/vm/contract"
)

// Logs opens the console of a pod's virtual machine. The console is deleted with the virtual
// machine.
func (s *Sessions) Logs(ctx context.Context, namespace, name, _ string, options api.ContainerLogOpts) (io.ReadCloser, error) {
	if options.Previous {
		return nil, errdefs.InvalidInput("a virtual machine is never restarted, so it has no previous console")
	}
	slot, err := s.machineOf(namespace, name)
	if err != nil {
		return nil, err
	}
	dir, err := s.slots.Dir(slot.UID())
	if err != nil {
		return nil, errdefs.AsNotFound(err)
	}
	file, err := os.Open(dir.ConsolePath())
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	if err != nil {
		return nil, err
	}
	if options.Tail > 0 {
		if err := seekTail(file, options.Tail); err != nil {
			_ = file.Close()
			return nil, err
		}
	}
	var log io.ReadCloser = file
	if options.Follow {
		if log, err = follow(ctx, file); err != nil {
			_ = file.Close()
			return nil, err
		}
	}
	since := options.SinceTime
	if options.SinceSeconds > 0 {
		since = s.clock.Now().Add(-time.Duration(options.SinceSeconds) * time.Second)
	}
	log = &console{lines: bufio.NewReader(log), Closer: log, since: since, timestamps: options.Timestamps}
	if options.LimitBytes > 0 {
		return &limited{Reader: io.LimitReader(log, int64(options.LimitBytes)), Closer: log}, nil
	}
	return log, nil
}

// console reads the lines of a console from a given time on, with or without timestamps.
type console struct {
	lines *bufio.Reader
	io.Closer
	since      time.Time
	timestamps bool
	rest       []byte // of the current line
}

func (c *console) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		line, err := c.lines.ReadBytes('\n')
		if at, text := contract.CutConsoleTime(line); !at.Before(c.since) {
			c.rest = text
			if c.timestamps {
				c.rest = line
			}
		}
		if err != nil && len(c.rest) == 0 {
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

type limited struct {
	io.Reader
	io.Closer
}

// seekTail seeks to the start of the last n lines.
func seekTail(file *os.File, n int) error {
	starts := []int64{0} // of the last n lines
	reader := bufio.NewReader(file)
	for offset := int64(0); ; {
		line, err := reader.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(line) == 0 || err != nil {
			break
		}
		offset += int64(len(line))
		starts = append(starts, offset)
	}
	// The last entry is the start of the next line.
	_, err := file.Seek(starts[max(0, len(starts)-1-n)], io.SeekStart)
	return err
}

// follow continues to read as the file grows, until the file is removed or ctx ends.
func follow(ctx context.Context, file *os.File) (io.ReadCloser, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(file.Name()); err != nil {
		_ = watcher.Close()
		return nil, err
	}
	reader, writer := io.Pipe()
	go func() {
		defer watcher.Close()
		defer file.Close()
		for {
			if _, err := io.Copy(writer, file); err != nil {
				_ = writer.CloseWithError(err)
				return
			}
			select {
			case <-ctx.Done():
				_ = writer.CloseWithError(io.EOF)
				return
			case event, ok := <-watcher.Events:
				// The removal of an open file arrives as a change of its mode.
				if !ok || event.Has(fsnotify.Remove) || event.Has(fsnotify.Chmod) {
					_ = writer.CloseWithError(io.EOF)
					return
				}
			}
		}
	}()
	return reader, nil
}
