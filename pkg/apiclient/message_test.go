package apiclient

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"macrack.io/macrack/pkg/printable"
)

func TestMessage(t *testing.T) {
	for text, want := range map[string]string{
		"pull failed":                     "pull failed",
		"a\nb\tc":                         "a\nb\tc",
		"\x00\x1b[2J\u202e":               `\x00\x1b[2J\u202e`,
		"a\xffb":                          "a\uFFFDb",
		strings.Repeat("m", MaxMessage):   strings.Repeat("m", MaxMessage),
		strings.Repeat("é", MaxMessage):   strings.Repeat("é", (MaxMessage-3)/2) + "...",
		strings.Repeat("m", MaxMessage+1): strings.Repeat("m", MaxMessage-3) + "...",
		strings.Repeat("\x00", 1<<20):     strings.Repeat(`\x00`, MaxMessage)[:MaxMessage-3] + "...",
	} {
		message := Message(text)
		assert.Equal(t, want, message)
		assert.LessOrEqual(t, len(message), MaxMessage)
		assert.Equal(t, message, printable.Lines(message, MaxMessage), "the API server stores it as it is")
	}
}
