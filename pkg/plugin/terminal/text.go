package terminal

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"macrack.io/macrack/pkg/printable"
)

// maxText is the maximum length in bytes of a text from the API on one line.
const maxText = 1024

// Clean returns a text from the API on one line, with control characters escaped. All texts that a
// user can have written pass through it.
func Clean(text string) string { return printable.Line(text, maxText) }

// Width returns the number of columns that a clean text takes.
func Width(text string) int {
	columns := 0
	for _, r := range text {
		columns += runeWidth(r)
	}
	return columns
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case width.LookupRune(r).Kind() == width.EastAsianWide, width.LookupRune(r).Kind() == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Cut returns text in at most columns columns. A shortened text ends with an ellipsis.
func Cut(text string, columns int) string {
	if Width(text) <= columns {
		return text
	}
	if columns <= 0 {
		return ""
	}
	used, end := 0, 0
	for i, r := range text {
		if used+runeWidth(r) > columns-1 {
			break
		}
		used, end = used+runeWidth(r), i+len(string(r))
	}
	return text[:end] + "…"
}

// Fill returns text in exactly columns columns, cut or followed by spaces.
func Fill(text string, columns int) string {
	text = Cut(text, columns)
	return text + strings.Repeat(" ", max(columns-Width(text), 0))
}

// Wrap returns text in lines of at most columns columns, broken at spaces where possible.
func Wrap(text string, columns int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		for Width(word) > columns {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			head := prefix(word, columns)
			lines, word = append(lines, head), word[len(head):]
		}
		switch {
		case line == "":
			line = word
		case Width(line)+1+Width(word) <= columns:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// prefix returns the longest beginning of text that fits in columns, and at least one character.
func prefix(text string, columns int) string {
	used := 0
	for i, r := range text {
		if i > 0 && used+runeWidth(r) > columns {
			return text[:i]
		}
		used += runeWidth(r)
	}
	return text
}
