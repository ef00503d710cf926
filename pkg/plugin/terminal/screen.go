package terminal

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Control sequences of terminals.
const (
	enter     = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leave     = "\x1b[?25h\x1b[?1049l"
	home      = "\x1b[H"
	clearLine = "\x1b[K"
	clearRest = "\x1b[J"
)

// A Screen shows the latest of several pictures. In a terminal, a picture replaces the previous one
// without flicker: in one write, and without an empty screen in between. Elsewhere, each changed
// picture is appended.
type Screen struct {
	out     io.Writer
	inPlace bool
	open    bool
	last    []string
}

// NewScreen returns a screen that redraws in place if inPlace is set.
func NewScreen(out io.Writer, inPlace bool) *Screen { return &Screen{out: out, inPlace: inPlace} }

// Draw shows a picture. Lines beyond height are omitted in a terminal; 0 means no limit.
func (s *Screen) Draw(lines []string, height int) error {
	if !s.inPlace {
		if slices.Equal(lines, s.last) {
			return nil
		}
		separator := ""
		if s.last != nil {
			separator = "\n"
		}
		s.last = slices.Clone(lines)
		_, err := io.WriteString(s.out, separator+join(lines))
		return err
	}
	s.last = slices.Clone(lines)
	if height > 0 && len(lines) > height {
		more := fmt.Sprintf("… %d more lines", len(lines)-height+1)
		lines = append(slices.Clone(lines[:height-1]), more)
	}
	var b strings.Builder
	if !s.open {
		b.WriteString(enter)
		s.open = true
	}
	b.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + clearLine)
	}
	b.WriteString(clearRest)
	_, err := io.WriteString(s.out, b.String())
	return err
}

// Close restores the terminal. The last picture stays visible.
func (s *Screen) Close() error {
	if !s.open {
		return nil
	}
	s.open = false
	_, err := io.WriteString(s.out, leave+join(s.last))
	return err
}

func join(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}
