package ociclient

import (
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"oras.land/oras-go/v2/registry/remote/errcode"
)

// htmlMessage is shown in place of HTML: its text is for browsers, and it is as long as it is useless.
const htmlMessage = "a page of HTML, which a proxy may have made"

func isHTML(header http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	return mediaType == "text/html" || mediaType == "application/xhtml+xml"
}

var tag = regexp.MustCompile(`(?i)<(!doctype|/?(html|head|body|title|h1|center)\b)`)

// messageOf returns what the errors in an answer say, each once and on one line; empty if they say nothing. Details are left
// out: each registry has its own, and few are for people.
func messageOf(errs errcode.Errors) string {
	var messages []string
	for _, err := range errs {
		code := strings.ToLower(strings.ReplaceAll(err.Code, "_", " "))
		message := err.Message
		switch {
		case tag.MatchString(message):
			message = htmlMessage
		case slices.Equal(words(message), words(code)): // "Unknown manifest" of MANIFEST_UNKNOWN
			message = ""
		}
		switch {
		case code == "":
			code = message
		case message != "":
			code += ": " + message
		}
		if code != "" {
			messages = append(messages, code)
		}
	}
	return oneLine(strings.Join(messages, "; "))
}

// words returns the words of a text in the order of the alphabet.
func words(text string) []string {
	fields := strings.Fields(strings.ToLower(strings.ReplaceAll(text, "_", " ")))
	slices.Sort(fields)
	return fields
}

// preferBearer makes the challenge Bearer of an answer the only one, if it has several: the library looks at the first alone, and
// Basic needs a password where a token for anybody, or a password for a token, would do.
func preferBearer(header http.Header) {
	const name = "Www-Authenticate"
	for _, value := range header[name] {
		if at := bearerIn(value); at >= 0 {
			header[name] = []string{value[at:]}
			return
		}
	}
}

// bearerIn returns where in a header the challenge Bearer begins; -1 if there is none. A header may have several challenges,
// with commas between, and a parameter may quote the word.
func bearerIn(value string) int {
	quoted := false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && len(value)-i > len("Bearer ") && strings.EqualFold(value[i:i+len("Bearer ")], "Bearer ") && startsChallenge(value[:i]):
			return i
		}
	}
	return -1
}

func startsChallenge(before string) bool {
	before = strings.TrimRight(before, " \t")
	return before == "" || strings.HasSuffix(before, ",")
}
