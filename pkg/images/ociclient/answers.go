package ociclient

import (
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"oras.land/oras-go/v2/registry/remote/errcode"
)

// htmlMessage replaces HTML responses, which are written for browsers and long.
const htmlMessage = "an HTML page, possibly from a proxy"

func isHTML(header http.Header) bool {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	return mediaType == "text/html" || mediaType == "application/xhtml+xml"
}

var tag = regexp.MustCompile(`(?i)<(!doctype|/?(html|head|body|title|h1|center)\b)`)

// messageOf returns the errors in a response, each once and on one line, or an empty string. It
// omits details: their format differs between registries, and few are readable.
func messageOf(errs errcode.Errors) string {
	var messages []string
	for _, err := range errs {
		code := strings.ToLower(strings.ReplaceAll(err.Code, "_", " "))
		message := err.Message
		switch {
		case tag.MatchString(message):
			message = htmlMessage
		case slices.Equal(words(message), words(code)): // such as "Unknown manifest" of MANIFEST_UNKNOWN
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

// words returns the words of a text in alphabetical order.
func words(text string) []string {
	fields := strings.Fields(strings.ToLower(strings.ReplaceAll(text, "_", " ")))
	slices.Sort(fields)
	return fields
}

// preferBearer removes all challenges of a response but Bearer, if that is one of them. The library
// looks only at the first; Basic requires a password where an anonymous token, or a password for a
// token, is sufficient.
func preferBearer(header http.Header) {
	const name = "Www-Authenticate"
	for _, value := range header[name] {
		if at := bearerIn(value); at >= 0 {
			header[name] = []string{value[at:]}
			return
		}
	}
}

// bearerIn returns the index of the Bearer challenge in a header, or -1. A header may have several
// challenges, separated by commas, and a parameter may quote the word.
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
