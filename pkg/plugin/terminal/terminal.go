// Package terminal writes text for people: it measures the terminal, cuts text to its width,
// colours text, and redraws a screen.
package terminal

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/term"
)

const (
	// DefaultWidth is the width of output that does not go to a terminal.
	DefaultWidth = 80
	minWidth     = 40
	maxWidth     = 240
)

// A Colour is the number of a colour in a terminal (SGR).
type Colour int

// Colours that are readable on light and dark backgrounds.
const (
	Plain  Colour = 0
	Bold   Colour = 1
	Faint  Colour = 2
	Red    Colour = 31
	Green  Colour = 32
	Yellow Colour = 33
	Blue   Colour = 34
	Cyan   Colour = 36
)

// A Style is the width of output, and whether it has colours.
type Style struct {
	Width  int
	Height int // 0: unlimited
	Colour bool
}

// A Getenv returns the value of an environment variable, as [os.Getenv].
type Getenv func(name string) string

// StyleOf returns the style for an output. Output that is not a terminal has no colours, and the
// width of COLUMNS or else [DefaultWidth]. NO_COLOR and TERM=dumb switch colours off.
func StyleOf(out io.Writer, env Getenv) Style {
	style := Style{Width: DefaultWidth}
	if columns, err := strconv.Atoi(env("COLUMNS")); err == nil {
		style.Width = columns
	}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			style.Width, style.Height = width, height
		}
		style.Colour = env("NO_COLOR") == "" && env("TERM") != "dumb"
	}
	style.Width = min(max(style.Width, minWidth), maxWidth)
	return style
}

// IsTerminal reports whether out is a terminal whose cursor can be moved.
func IsTerminal(out any, env Getenv) bool {
	f, ok := out.(*os.File)
	return ok && env("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// Paint returns text in a colour, or text itself if the output has no colours. Cut and pad text
// before it is painted.
func (s Style) Paint(colour Colour, text string) string {
	if !s.Colour || colour == Plain || text == "" {
		return text
	}
	return "\x1b[" + strconv.Itoa(int(colour)) + "m" + text + "\x1b[0m"
}
