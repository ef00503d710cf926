package apiclient

import "strings"

// MaxMessage is the maximum length, in bytes, of a message from another system in a status.
const MaxMessage = 1024

// Message returns a message from another system, such as a registry or a scheduler, in valid UTF-8 and shortened to [MaxMessage].
func Message(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= MaxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:MaxMessage-len("...")], "") + "..."
}
