package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// tail quotes the end of the log for an error message.
func (p *Process) tail() string {
	lines, err := lastLines(p.LogFile, logTail)
	if err != nil || len(lines) == 0 {
		return fmt.Sprintf("\n  (its log %s is empty)", p.LogFile)
	}
	return fmt.Sprintf("\n  the end of %s:\n    %s", p.LogFile, strings.Join(lines, "\n    "))
}

func lastLines(path string, n int) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const window = 32 << 10
	if info, err := f.Stat(); err == nil && info.Size() > window {
		if _, err := f.Seek(-window, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil, nil
	}
	lines := strings.Split(string(data), "\n")
	// The cause of a panic stands above a long trace.
	cause := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
	})
	if cause >= 0 && len(lines)-cause > n {
		return append(lines[cause:cause+n:cause+n], "..."), nil
	}
	return lines[max(0, len(lines)-n):], nil
}
