package apiclient

import (
	"unicode/utf8"

	"macrack.io/macrack/pkg/printable"
)

// MaxMessage is the maximum length, in bytes, of a message from another system in a status.
const MaxMessage = 1024

// Message returns a message from another system, such as a registry or a scheduler, with characters that do not print escaped, and shortened to [MaxMessage].
func Message(text string) string {
	const cut = "..."
	message := printable.Lines(text, MaxMessage+utf8.UTFMax)
	if len(message) <= MaxMessage {
		return message
	}
	return printable.Lines(message, MaxMessage-len(cut)) + cut
}
