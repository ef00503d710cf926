package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
)

// tokenBytes is the size of the token in the address of the page.
const tokenBytes = 32

// newToken returns a random token.
func newToken() string {
	token := make([]byte, tokenBytes)
	_, _ = rand.Read(token) // never fails
	return hex.EncodeToString(token)
}

// policy lets the page load its own files only, and refuses markup from strings.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// A guard refuses requests that do not come from the page: those without the token, those with
// another host name (DNS rebinding), and those of pages of another origin.
type guard struct {
	token [sha256.Size]byte
	// hosts are the values of Host that a browser on this machine sends.
	hosts []string
}

func newGuard(token string, hosts ...string) *guard {
	return &guard{token: sha256.Sum256([]byte(token)), hosts: hosts}
}

// protect returns a handler that passes allowed requests on, without the token in their path.
func (g *guard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-store")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("X-Frame-Options", "DENY")
		token, path, found := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		switch sum := sha256.Sum256([]byte(token)); {
		case !slices.Contains(g.hosts, req.Host):
			http.Error(w, "unknown host name; use the address that kubectl macrack ui has printed", http.StatusMisdirectedRequest)
		case !found || subtle.ConstantTimeCompare(sum[:], g.token[:]) != 1:
			http.Error(w, "missing or wrong token; use the address that kubectl macrack ui has printed", http.StatusForbidden)
		case !g.isOurPage(req, path):
			http.Error(w, "requests of other origins are refused", http.StatusForbidden)
		case req.Method != http.MethodGet && req.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "the console is read-only", http.StatusMethodNotAllowed)
		default:
			http.StripPrefix("/"+token, next).ServeHTTP(w, req)
		}
	})
}

// isOurPage reports whether a request comes from the page itself, or opens it in a tab. Browsers
// set these headers, and scripts cannot change them.
func (g *guard) isOurPage(req *http.Request, path string) bool {
	if origin := req.Header.Get("Origin"); origin != "" && origin != "http://"+req.Host {
		return false
	}
	switch req.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return path == "" && req.Header.Get("Sec-Fetch-Mode") == "navigate" && req.Header.Get("Sec-Fetch-Dest") == "document"
}
