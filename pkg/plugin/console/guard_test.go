package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGuard(t *testing.T) {
	token := newToken()
	assert.Len(t, token, 2*tokenBytes)
	assert.NotEqual(t, token, newToken())
	const host = "127.0.0.1:8001"
	allowed := newGuard(token, host, "localhost:8001").protect(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write([]byte(req.URL.Path))
	}))
	headers := func(pairs ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	const other = "https://evil.example"
	for name, tt := range map[string]struct {
		method, host, path string
		headers            http.Header
		want               int
	}{
		"the page":                       {path: "/" + token + "/", want: 200},
		"the page by name":               {host: "localhost:8001", path: "/" + token + "/", want: 200},
		"a file of the page":             {path: "/" + token + "/app.js", headers: headers("Sec-Fetch-Site", "same-origin", "Origin", "http://"+host), want: 200},
		"a link to the page":             {path: "/" + token + "/", headers: headers("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), want: 200},
		"HEAD":                           {method: http.MethodHead, path: "/" + token + "/", want: 200},
		"no token":                       {path: "/", want: 403},
		"no token but a file":            {path: "/app.js", want: 403},
		"the stream without the token":   {path: "/stream", want: 403},
		"a wrong token":                  {path: "/" + newToken() + "/stream", want: 403},
		"a part of the token":            {path: "/" + token[:60] + "/stream", want: 403},
		"the token without a slash":      {path: "/" + token, want: 403},
		"an empty token":                 {path: "//stream", want: 403},
		"the token after another":        {path: "/x/" + token + "/stream", want: 403},
		"a rebinding host name":          {host: "evil.example:8001", path: "/" + token + "/stream", want: 421},
		"a rebinding name, wrong port":   {host: "evil.example", path: "/" + token + "/", want: 421},
		"another port of this machine":   {host: "127.0.0.1:9999", path: "/" + token + "/", want: 421},
		"a script of another origin":     {path: "/" + token + "/stream", headers: headers("Origin", other), want: 403},
		"a script of another port":       {path: "/" + token + "/stream", headers: headers("Origin", "http://127.0.0.1:3000"), want: 403},
		"a script of an opaque origin":   {path: "/" + token + "/stream", headers: headers("Origin", "null"), want: 403},
		"an element of another site":     {path: "/" + token + "/app.js", headers: headers("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"), want: 403},
		"an element of another port":     {path: "/" + token + "/app.js", headers: headers("Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "script"), want: 403},
		"a frame of another site":        {path: "/" + token + "/", headers: headers("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), want: 403},
		"a link of another site to data": {path: "/" + token + "/mac", headers: headers("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), want: 403},
		"POST":                           {method: http.MethodPost, path: "/" + token + "/", want: 405},
		"DELETE":                         {method: http.MethodDelete, path: "/" + token + "/mac", want: 405},
		"a preflight of another origin":  {method: http.MethodOptions, path: "/" + token + "/", headers: headers("Origin", other), want: 403},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(orElse(tt.method, http.MethodGet), "http://"+orElse(tt.host, host)+tt.path, nil)
			for key, value := range tt.headers {
				req.Header[key] = value
			}
			w := httptest.NewRecorder()
			allowed.ServeHTTP(w, req)
			assert.Equal(t, tt.want, w.Code)
			assert.NotContains(t, w.Body.String(), token)
			assert.Equal(t, tt.want == 200, strings.HasPrefix(w.Body.String(), "/"), "the answer is that of the page")
			h := w.Header()
			assert.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
			assert.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
			assert.Equal(t, "no-store", h.Get("Cache-Control"))
			assert.Equal(t, "same-origin", h.Get("Cross-Origin-Resource-Policy"))
			assert.Empty(t, h.Get("Access-Control-Allow-Origin"))
			csp := h.Get("Content-Security-Policy")
			assert.Contains(t, csp, "default-src 'none'; script-src 'self'; style-src 'self';")
			assert.Contains(t, csp, "frame-ancestors 'none'")
			assert.NotContains(t, csp, "unsafe")
		})
	}
}

func orElse(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// The page has no script, style or handler in its markup, and names no other host.
func TestPageIsSelfContained(t *testing.T) {
	entries, err := page.ReadDir("page")
	assert.NoError(t, err)
	assert.Greater(t, len(entries), 10)
	for _, entry := range entries {
		data, err := page.ReadFile("page/" + entry.Name())
		assert.NoError(t, err)
		text := strings.ReplaceAll(string(data), "http://www.w3.org/2000/svg", "")
		for _, forbidden := range []string{"http:", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "<style", " style=", "javascript:", "localStorage", "import(", " onclick=", "@import"} {
			assert.NotContains(t, text, forbidden, entry.Name())
		}
		assert.Equal(t, strings.Count(text, "<script"), strings.Count(text, `<script type="module" src=`), entry.Name())
	}
}
