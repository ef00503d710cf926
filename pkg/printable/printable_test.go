package printable

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func TestEscapes(t *testing.T) {
	for name, tt := range map[string]struct{ text, line, lines string }{
		"plain":                       {"jane@example.com", "jane@example.com", "jane@example.com"},
		"other scripts":               {"Zoë 山田 אבג", "Zoë 山田 אבג", "Zoë 山田 אבג"},
		"a right-to-left override":    {"a\u202eb", `a\u202eb`, `a\u202eb`},
		"a bidirectional isolate":     {"a\u2066b\u2069", `a\u2066b\u2069`, `a\u2066b\u2069`},
		"a zero-width space":          {"ad\u200bmin", `ad\u200bmin`, `ad\u200bmin`},
		"a zero-width joiner":         {"a\u200db", `a\u200db`, `a\u200db`},
		"a byte order mark":           {"\ufeffadmin", `\ufeffadmin`, `\ufeffadmin`},
		"a soft hyphen":               {"ad\u00admin", `ad\u00admin`, `ad\u00admin`},
		"a combining joiner":          {"a\u034fb", `a\u034fb`, `a\u034fb`},
		"a Hangul filler":             {"a\u3164b", `a\u3164b`, `a\u3164b`},
		"a blank Braille pattern":     {"a\u2800b", `a\u2800b`, `a\u2800b`},
		"a space that does not break": {"a\u00a0b", `a\u00a0b`, `a\u00a0b`},
		"a line separator":            {"a\u2028b", `a\u2028b`, `a\u2028b`},
		"a variation selector":        {"a\ufe0fb", `a\ufe0fb`, `a\ufe0fb`},
		"a tag":                       {"a\U000e0041b", `a\U000e0041b`, `a\U000e0041b`},
		"a private character":         {"a\ue000b", `a\ue000b`, `a\ue000b`},
		"a terminal's escape":         {"a\x1b[2Jb", `a\x1b[2Jb`, `a\x1b[2Jb`},
		"a control of the C1 set":     {"a\u009b2Jb", `a\u009b2Jb`, `a\u009b2Jb`},
		"NUL":                         {"a\x00b", `a\x00b`, `a\x00b`},
		"lines":                       {"a\n\tb\r\n", `a\n\tb\r\n`, "a\n\tb\\r\n"},
		"what is not UTF-8":           {"a\xffb", "a\ufffdb", "a\ufffdb"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.line, Line(tt.text, 100))
			assert.Equal(t, tt.lines, Lines(tt.text, 100))
			assert.Equal(t, tt.line == tt.text, IsLine(tt.text))
			assert.Equal(t, tt.line, Line(Line(tt.text, 100), 100), "once is enough")
		})
	}
	assert.Equal(t, `Zo\u00eb \U0001f600\u202e "a"`, ASCII("Zoë 😀\u202e \"a\"", 100))
}

func TestLimit(t *testing.T) {
	for limit := range 20 {
		for _, text := range []string{strings.Repeat("山", 10), strings.Repeat("\u202e", 10), "a\xff\xffb" + strings.Repeat("\n", 20), strings.Repeat("a", 30)} {
			for _, got := range []string{Line(text, limit), Lines(text, limit), ASCII(text, limit)} {
				assert.LessOrEqual(t, len(got), limit)
				assert.True(t, utf8.ValidString(got))
			}
		}
	}
	assert.Len(t, Line(strings.Repeat("\u202e", 1<<20), 4096), 4096)
}
