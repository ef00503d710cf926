package apiclient

import "macrack.io/macrack/pkg/printable"

// MaxMessage is the maximum length, in bytes, of a message from another system in a status.
const MaxMessage = 1024

// Message returns a message from another system, such as a registry or a scheduler, shortened to
// [MaxMessage] and with characters that do not print escaped. The API server stores it unchanged.
func Message(text string) string { return printable.Lines(text, MaxMessage) }
