package cmdutil

import (
	"fmt"

	"macrack.io/macrack/pkg/plugin/terminal"
)

// NoticeLines returns the notices below a picture, and the problem of a server that does not
// answer.
func NoticeLines(notices []string, problem error, style terminal.Style) []string {
	var lines []string
	for _, notice := range notices {
		lines = append(lines, terminal.Wrap(notice, style.Width)...)
	}
	if problem != nil {
		text := fmt.Sprintf("No answer from the server, trying again: %v", problem)
		lines = append(lines, style.Paint(terminal.Red, terminal.Cut(terminal.Clean(text), style.Width)))
	}
	if len(lines) > 0 {
		lines = append([]string{""}, lines...)
	}
	return lines
}
