// Package printable makes text from users safe to display: every character is visible, in the order
// in which it is stored. Terminals interpret control characters, reorder the text after a
// bidirectional control, and do not show zero-width characters.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text on one line. Text longer than limit bytes is cut and ends with three dots.
// Characters that are not printable, including line breaks and tabs, are escaped as in Go, for
// example as \u202e. Invalid UTF-8 becomes U+FFFD.
func Line(text string, limit int) string { return escape(text, limit, visible) }

// Lines returns text as Line does, but keeps line breaks and tabs.
func Lines(text string, limit int) string {
	return escape(text, limit, func(r rune) bool { return r == '\n' || r == '\t' || visible(r) })
}

// ASCII returns text as Line does, and also escapes characters that are not ASCII.
func ASCII(text string, limit int) string {
	return escape(text, limit, func(r rune) bool { return ' ' <= r && r <= '~' })
}

// IsLine reports whether Line returns text unchanged, apart from the limit.
func IsLine(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !visible(r) }) < 0
}

// visible reports whether a character is visible when displayed.
func visible(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && r != brailleBlank
}

const brailleBlank = '\u2800' // a symbol that looks like a space

// cut marks a shortened text: two long texts with the same beginning must not look complete and
// equal.
const cut = "..."

func escape(text string, limit int, keep func(rune) bool) string {
	text = strings.ToValidUTF8(text, string(unicode.ReplacementChar))
	if strings.IndexFunc(text, func(r rune) bool { return !keep(r) }) >= 0 {
		var b strings.Builder
		for _, r := range text {
			if b.Len() > limit {
				break
			}
			if keep(r) {
				b.WriteRune(r)
				continue
			}
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1]) // without its quotation marks
		}
		text = b.String()
	}
	if len(text) > limit {
		end := cut[:min(len(cut), limit)]
		text = strings.ToValidUTF8(text[:limit-len(end)], "") + end
	}
	return text
}
