package ociclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// StatusError is an error response of a registry.
type StatusError struct {
	Host    string
	Code    int
	Message string
	// RetryAfter is the wait that the registry requests; zero if it requests none.
	RetryAfter time.Duration
}

// Error returns the message.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("registry %s responds with %d %s", e.Host, e.Code, http.StatusText(e.Code))
	if e.Message != "" {
		text += ": " + e.Message
	}
	switch e.Code {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += " (the image requires credentials; see spec.pullSecretRef)"
	case http.StatusNotFound:
		text += " (the content was never pushed to the repository, or was deleted)"
	}
	return text
}

// IsUnauthorized reports whether the registry requires other credentials.
func IsUnauthorized(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && (status.Code == http.StatusUnauthorized || status.Code == http.StatusForbidden)
}

// IsNotFound reports whether the requested content does not exist in the registry.
func IsNotFound(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// DigestError means that a registry sent content with another digest.
type DigestError struct {
	Host      string
	Want, Got digest.Digest
}

// Error returns the message.
func (e *DigestError) Error() string {
	return fmt.Sprintf("registry %s sent content with digest %s for %s; the content was damaged or replaced", e.Host, e.Got, e.Want)
}

// explain turns library errors into errors of this package. It omits the query of URLs, because
// that may hold a signature.
func (c *Client) explain(err error) error {
	var response *errcode.ErrorResponse
	if errors.As(err, &response) {
		return &StatusError{Host: response.URL.Host, Code: response.StatusCode, Message: messageOf(response.Errors)}
	}
	if errors.Is(err, auth.ErrBasicCredentialNotFound) {
		return &StatusError{Host: c.repo.Reference.Host(), Code: http.StatusUnauthorized, Message: "no credentials are configured"}
	}
	if errors.Is(err, errdef.ErrNotFound) {
		return &StatusError{Host: c.repo.Reference.Host(), Code: http.StatusNotFound}
	}
	var request *url.Error
	if errors.As(err, &request) {
		where := "registry " + c.repo.Reference.Host()
		if at, parseErr := url.Parse(request.URL); parseErr == nil && at.Host != c.repo.Reference.Host() {
			where += ", by way of " + at.Host
		}
		if errors.Is(request.Err, http.ErrSchemeMismatch) {
			return fmt.Errorf("%s has no TLS, which only a registry on this machine may omit (127.0.0.1, localhost); give the registry a certificate: %w", where, request.Err)
		}
		return fmt.Errorf("%s: %w", where, request.Err)
	}
	return err
}

func (d *doer) statusError(resp *http.Response) error {
	e := &StatusError{Host: resp.Request.URL.Host, Code: resp.StatusCode}
	if text := resp.Header.Get("Retry-After"); text != "" {
		if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
			e.RetryAfter = time.Duration(min(seconds, 1<<30)) * time.Second
		} else if at, err := http.ParseTime(text); err == nil {
			e.RetryAfter = max(0, at.Sub(d.clock.Now()))
		}
	}
	var body struct {
		Errors errcode.Errors `json:"errors"`
	}
	if isHTML(resp.Header) {
		e.Message = htmlMessage
	} else if data, err := io.ReadAll(io.LimitReader(resp.Body, 8<<10)); err == nil && json.Unmarshal(data, &body) == nil {
		e.Message = messageOf(body.Errors)
	}
	return e
}

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

func oneLine(text string) string {
	const limit = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}
