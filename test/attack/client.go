package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const maxAnswer = 4 << 20

// An answer is a server's response, or the error for which there is no response.
type answer struct {
	code int // 0: no answer
	body string
	err  error
}

func (a answer) text() string {
	if a.err != nil {
		return a.err.Error()
	}
	return a.body
}

// A step is one action of a user.
type step func(ctx context.Context, w *world, who string) answer

// A call is one request.
type call struct {
	method, path, body string
	contentType        string
	accept             string
	header             map[string]string
	replica            int  // of macrack-apiserver, asked directly; 0: through kube-apiserver
	raw                bool // the path is sent unchanged
}

func (c call) do(ctx context.Context, w *world, who string) answer {
	u, err := w.user(who)
	if err != nil {
		return answer{err: err}
	}
	client, base := u.kube, u.kubeURL
	if c.replica > 0 {
		client, base = u.direct, fmt.Sprintf("https://127.0.0.1:%d", w.cluster.Port(fmt.Sprintf("macrack-apiserver-%d", c.replica)))
	}
	return c.send(ctx, client, base)
}

func (c call) send(ctx context.Context, client *http.Client, base string) answer {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	target := base + c.path
	if c.raw {
		target = base
	}
	req, err := http.NewRequestWithContext(ctx, c.method, target, strings.NewReader(c.body))
	if err != nil {
		return answer{err: err}
	}
	if c.raw {
		req.URL.Opaque = "//" + req.URL.Host + c.path
	}
	if c.body != "" {
		contentType := c.contentType
		if contentType == "" {
			contentType = "application/json"
		}
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", "application/json")
	if c.accept != "" {
		req.Header.Set("Accept", c.accept)
	}
	for name, value := range c.header {
		for _, v := range strings.Split(value, "\n") {
			req.Header.Add(name, v)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil && len(data) == 0 {
		return answer{code: resp.StatusCode, err: err}
	}
	return answer{code: resp.StatusCode, body: string(data)}
}

func get(path string) step { return call{method: http.MethodGet, path: path}.do }

func post(path, body string) step { return call{method: http.MethodPost, path: path, body: body}.do }

func put(path, body string) step { return call{method: http.MethodPut, path: path, body: body}.do }

func remove(path string) step { return call{method: http.MethodDelete, path: path}.do }

// Kinds of patches.
const (
	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

func patch(kind, path, body string) step {
	if kind == applyPatch {
		path += "?fieldManager=attack&force=true"
	}
	return call{method: http.MethodPatch, path: path, body: body, contentType: kind}.do
}

// change reads an object, changes it and writes it back, as kubectl replace does. The written path
// may be that of a subresource.
func change(read, write string, edit func(obj map[string]any)) step {
	return rewrite(read, write, func(data []byte) ([]byte, error) {
		obj := map[string]any{}
		if err := json.Unmarshal(data, &obj); err != nil {
			return nil, err
		}
		edit(obj)
		return json.Marshal(obj)
	})
}

// rewrite is change with the JSON of the object.
func rewrite(read, write string, edit func(obj []byte) ([]byte, error)) step {
	return func(ctx context.Context, w *world, who string) answer {
		got := get(read)(ctx, w, "admin")
		if got.code != http.StatusOK {
			return answer{err: fmt.Errorf("reading %s: %d %s", read, got.code, got.text())}
		}
		data, err := edit([]byte(got.body))
		if err != nil {
			return answer{err: fmt.Errorf("editing %s: %w", read, err)}
		}
		return put(write, string(data))(ctx, w, who)
	}
}

// stored creates an object, answers with it as stored, and deletes it again.
func stored(path, body string) step {
	return func(ctx context.Context, w *world, who string) answer {
		made := post(path, body)(ctx, w, who)
		if made.code != http.StatusCreated {
			return made
		}
		obj := struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}{}
		if err := json.Unmarshal([]byte(made.body), &obj); err != nil {
			return answer{err: err}
		}
		at := strings.SplitN(path, "?", 2)[0] + "/" + url.PathEscape(obj.Metadata.Name)
		got := get(at)(ctx, w, "admin")
		if gone := remove(at)(ctx, w, "admin"); gone.code >= 300 {
			return answer{err: fmt.Errorf("deleting what was made: %d %s", gone.code, gone.text())}
		}
		if got.code != http.StatusOK {
			return answer{err: fmt.Errorf("reading what was made: %d %s", got.code, got.text())}
		}
		got.code = made.code
		return got
	}
}

// times makes a request many times at once, and answers with the lowest code and the number of each
// code.
func times(n int, each func(i int) step) step {
	return func(ctx context.Context, w *world, who string) answer {
		codes := countCodes(ctx, w, who, n, each)
		return answer{code: slices.Min(slices.Collect(maps.Keys(codes))), body: fmt.Sprintf("codes %v", codes)}
	}
}

// countCodes makes a request many times at once, and returns how often each code came.
func countCodes(ctx context.Context, w *world, who string, n int, each func(i int) step) map[int]int {
	answers := make(chan answer, n)
	limit := make(chan struct{}, 32)
	for i := range n {
		go func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			answers <- each(i)(ctx, w, who)
		}()
	}
	codes := map[int]int{}
	for range n {
		codes[(<-answers).code]++
	}
	return codes
}

// dial makes a TLS connection of its own, and a request on it.
func dial(config func(w *world) (*tls.Config, error), base func(w *world) string, c call) step {
	return func(ctx context.Context, w *world, _ string) answer {
		tlsConfig, err := config(w)
		if err != nil {
			return answer{code: -1, err: err}
		}
		transport := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
		defer transport.CloseIdleConnections()
		return c.send(ctx, &http.Client{Transport: transport, CheckRedirect: noRedirect}, base(w))
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// inZone returns the same time in a zone fourteen hours further east.
func inZone(text string) (string, error) {
	t, err := time.Parse(time.RFC3339, text)
	return t.In(time.FixedZone("", 14*60*60)).Format(time.RFC3339), err
}
