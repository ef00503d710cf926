package ui

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

const patience = 10 * time.Second

// A browser is a tab of Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu sync.Mutex
	// requests are the addresses that the tab has asked for; problems are errors of its console.
	requests, problems []string
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("hide-scrollbars", true))
	if os.Geteuid() == 0 {
		flags = append(flags, chromedp.NoSandbox) // Chromium's sandbox does not run as root
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), flags...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, b.observe)) // starts Chromium, which ends with its context
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, accessibility.Enable, cdp.Empty{})
	return b
}

func (b *browser) observe(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, event.Request.URL)
	case *log.EventEntryAdded:
		if event.Entry.Level == log.EntryLevelError {
			b.problems = append(b.problems, event.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, event.ExceptionDetails.Text)
	}
}

// takeProblems returns the errors of the tab since the last call.
func (b *browser) takeProblems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	problems := b.problems
	b.problems = nil
	return problems
}

// strangers returns the requests that did not go to an address.
func (b *browser) strangers(base string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requests {
		if !strings.HasPrefix(url, base) {
			found = append(found, url)
		}
	}
	return found
}

// do runs a step, with a timeout.
func (b *browser) do(step chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, step))
}

// call runs a command of the protocol, with a timeout.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	require.NoError(b.t, err)
	return result
}

// look sets the width of the page, and the colour scheme.
func (b *browser) look(width int64, scheme string) {
	b.t.Helper()
	height := int64(900)
	if width < 700 {
		height = 812
	}
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 700})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise, chromedp.EvalAsValue))
	require.NoError(b.t, err, expression)
	return value
}

// js runs statements.
func (b *browser) js(statements string) {
	b.t.Helper()
	eval[bool](b, "(() => { "+statements+"; return true })()")
}

// await waits until an expression is true.
func (b *browser) await(expression string) bool {
	b.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if eval[bool](b, "Boolean("+expression+")") {
			return true
		}
	}
	return false
}

// press presses keys.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.do(chromedp.KeyEvent(key))
	}
}

// An accessible is what assistive technology knows of an element.
type accessible struct{ role, name string }

// focused returns the focused element.
func (b *browser) focused() accessible {
	b.t.Helper()
	relatives := false
	nodes := call(b, accessibility.GetPartialAXTree, accessibility.GetPartialAXTreeParams{ObjectID: b.object("document.activeElement"), FetchRelatives: &relatives}).Nodes
	if len(nodes) == 0 {
		return accessible{}
	}
	return accessible{valueOf(nodes[0].Role), valueOf(nodes[0].Name)}
}

// object returns the identifier of the element that is the value of an expression.
func (b *browser) object(expression string) runtime.RemoteObjectID {
	b.t.Helper()
	result := call(b, runtime.Evaluate, runtime.EvaluateParams{Expression: expression})
	require.NotNil(b.t, result.Result, expression)
	return result.Result.ObjectID
}

func valueOf(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return text
}

// find returns the names of the visible elements with a role, and with a name if it is not empty.
func (b *browser) find(role, name string) (names []string) {
	b.t.Helper()
	params := accessibility.QueryAXTreeParams{ObjectID: b.object("document"), Role: role, AccessibleName: name}
	for _, node := range call(b, accessibility.QueryAXTree, params).Nodes {
		if !node.Ignored {
			names = append(names, valueOf(node.Name))
		}
	}
	return names
}

// tabTo presses Tab until an element with the role, and a name that contains a text, has the focus.
func (b *browser) tabTo(role, name string) bool {
	b.t.Helper()
	for range 40 {
		if a := b.focused(); a.role == role && strings.Contains(a.name, name) {
			return true
		}
		b.press(kb.Tab)
	}
	return false
}

// screenshot writes a picture of the window to the folder of the test's output.
func (b *browser) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("UI_SCREENSHOTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	data := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{}).Data
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644))
}
