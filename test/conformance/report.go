package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// A behaviour is one observation of a client or tool. It applies to every kind with the verbs it
// needs.
type behaviour struct {
	name string
	// verbs are the verbs that the kind must serve.
	verbs []string
	// applies returns why the behaviour does not apply to a kind, or "". Nil: it applies to every
	// kind with the verbs.
	applies func(k *kind) string
	do      func(t *T, k *kind)
}

// why returns the reason why the behaviour does not apply to the kind, or "".
func (b behaviour) why(k *kind) string {
	if k == nil {
		return ""
	}
	if reason := k.Except[b.name]; reason != "" {
		return reason
	}
	for _, verb := range b.verbs {
		if !k.serves(verb) && k.ReadOnly != "" {
			return k.ReadOnly
		}
		if !k.serves(verb) {
			return "the kind has no verb " + verb
		}
	}
	if b.applies != nil {
		return b.applies(k)
	}
	return ""
}

// T is one run of a behaviour. It is a require.TestingT and an assert.TestingT.
type T struct {
	context.Context
	world    *world
	failures []string
	cleanups []func()
}

// Errorf records a failure.
func (t *T) Errorf(format string, args ...any) {
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

// FailNow ends the behaviour.
func (t *T) FailNow() { runtime.Goexit() }

// Helper implements testify's interface.
func (t *T) Helper() {}

func (t *T) cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// within bounds a behaviour; the slowest waits for a virtual machine to start and stop.
const within = 4 * time.Minute

// cleaningWithin bounds the cleanups of a behaviour.
const cleaningWithin = 2 * time.Minute

func (b behaviour) run(ctx context.Context, w *world, k *kind) []string {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("the behaviour took longer than %s", within))
	defer cancel()
	t := &T{Context: ctx, world: w}
	guarded := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if problem := recover(); problem != nil {
					t.Errorf("panic: %v\n%s", problem, debug.Stack())
				}
			}()
			f()
		}()
		<-done
	}
	guarded(func() { b.do(t, k) })
	// Cleanups also run after a behaviour that took too long, or that was interrupted.
	cleaning, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), cleaningWithin, fmt.Errorf("the cleanup took longer than %s", cleaningWithin))
	defer stop()
	t.Context = cleaning
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		guarded(t.cleanups[i])
	}
	return t.failures
}

type report struct {
	options
	out            io.Writer
	passed, failed int
	exempt         int
}

// allKinds is the kind of scenarios.
const allKinds = "all kinds"

func (r *report) run(ctx context.Context, w *world, k *kind, b behaviour) {
	name := allKinds
	if k != nil {
		name = k.Kind
	}
	if ctx.Err() != nil || r.kind != "" && r.kind != name || !strings.Contains(b.name, r.behaviour) {
		return
	}
	if reason := b.why(k); reason != "" {
		r.exempt++
		if r.verbose {
			fmt.Fprintf(r.out, "- %-16s %s: does not apply: %s\n", name, b.name, reason)
		}
		return
	}
	began := time.Now()
	failures := b.run(ctx, w, k)
	took := time.Since(began).Round(100 * time.Millisecond)
	if len(failures) == 0 {
		r.passed++
		if r.verbose {
			fmt.Fprintf(r.out, "✓ %-16s %s (%s)\n", name, b.name, took)
		}
		return
	}
	r.failed++
	fmt.Fprintf(r.out, "✗ %-16s %s (%s)\n", name, b.name, took)
	for _, failure := range failures {
		for _, line := range readable(failure) {
			fmt.Fprintf(r.out, "      %s\n", line)
		}
	}
}

var traceLine = regexp.MustCompile(`\.(go|s):\d+$`)

// readable returns the lines of a failure, without testify's trace and shortened.
func readable(failure string) []string {
	const most = 30
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(failure)) {
		text := strings.TrimSpace(line)
		if text == "" || !strings.HasPrefix(text, "/") && strings.HasPrefix(text, "Error Trace:") || traceLine.MatchString(text) && !strings.HasPrefix(failure, "panic") {
			continue
		}
		if len(lines) == most {
			return append(lines, "...")
		}
		lines = append(lines, clip(strings.TrimRight(line, " \t\n")))
	}
	return lines
}

// clip shortens a long line.
func clip(line string) string {
	const most = 1500
	if len(line) > most {
		return line[:most] + "..."
	}
	return line
}

func (r *report) end(kinds int) error {
	fmt.Fprintf(r.out, "\n%d behaviours do not apply to a kind, for a reason that --verbose prints\n", r.exempt)
	fmt.Fprintf(r.out, "conformance: kinds=%d behaviours=%d passed=%d failed=%d\n", kinds, r.passed+r.failed, r.passed, r.failed)
	if r.failed > 0 {
		return fmt.Errorf("%d behaviours failed; they are marked with ✗", r.failed)
	}
	return nil
}
