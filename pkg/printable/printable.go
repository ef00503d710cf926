// Package printable makes text from users safe to show: a reader sees every character, in the order in which it is stored. Terminals act on
// control characters, reorder what follows a bidirectional control, and show nothing for zero-width characters.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text on one line, cut to limit bytes, which end with three dots then. Characters that do not print, line breaks and tabs among them, are escaped as in Go, such as
// \u202e. Bytes that are not UTF-8 become U+FFFD.
func Line(text string, limit int) string { return escape(text, limit, visible) }

// Lines returns text as Line does, but keeps line breaks and tabs.
func Lines(text string, limit int) string {
	return escape(text, limit, func(r rune) bool { return r == '\n' || r == '\t' || visible(r) })
}

// ASCII returns text as Line does, and also escapes characters that are not ASCII.
func ASCII(text string, limit int) string {
	return escape(text, limit, func(r rune) bool { return ' ' <= r && r <= '~' })
}

// IsLine reports whether Line keeps text as it is, but for the limit.
func IsLine(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !visible(r) }) < 0
}

// visible reports whether a character is seen when it is shown.
func visible(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && r != brailleBlank
}

const brailleBlank = '\u2800' // a symbol that looks like a space

// cut is the end of a text that was longer: two texts that differ later must not look complete and the same.
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
