package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
)

// Every served kind has a file, every file belongs to a served kind, and no file names an unknown
// behaviour.
func TestKinds(t *testing.T) {
	kinds, err := loadKinds()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, b := range behaviours {
		assert.False(t, names[b.name], "two behaviours are named %q", b.name)
		names[b.name] = true
	}
	have := map[schema.GroupVersionKind]bool{}
	for _, k := range kinds {
		have[k.gvk()] = true
		assert.True(t, scheme.Scheme.Recognizes(k.gvk()), k.Kind)
		for behaviour, reason := range k.Except {
			assert.True(t, names[behaviour], "%s: no behaviour is named %q", k.Kind, behaviour)
			assert.NotEmpty(t, reason)
		}
		if k.ReadOnly == "" {
			assert.NotNil(t, k.Invalid, k.Kind)
			assert.NotEmpty(t, k.Spec, k.Kind)
		}
	}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		if !strings.HasSuffix(gvk.Group, ".macrack.io") || !scheme.Scheme.Recognizes(gvk.GroupVersion().WithKind(gvk.Kind+"List")) {
			continue // lists, options and subresources have no list
		}
		assert.True(t, have[gvk], "testdata/kinds has no %s", gvk)
	}
}

func TestReport(t *testing.T) {
	k := &kind{Kind: "Thing", Verbs: []string{"get"}, Except: map[string]string{"excepted": "as it is so"}}
	passes := behaviour{name: "passes", do: func(*T, *kind) {}}
	fails := behaviour{name: "fails", do: func(t *T, _ *kind) {
		t.cleanup(func() { t.Errorf("cleaned up") })
		require.Equal(t, "expected", "seen")
		t.Errorf("not reached")
	}}
	panics := behaviour{name: "panics", do: func(*T, *kind) { panic("no") }}
	excepted := behaviour{name: "excepted", do: fails.do}
	noVerb := behaviour{name: "no verb", verbs: []string{"delete"}, do: fails.do}

	out := &bytes.Buffer{}
	r := &report{out: out, options: options{verbose: true}}
	for _, b := range []behaviour{passes, fails, panics, excepted, noVerb} {
		r.run(context.Background(), nil, k, b)
	}
	require.EqualError(t, r.end(1), "2 behaviours failed; they are marked with ✗")
	text := out.String()
	assert.Contains(t, text, "\nconformance: kinds=1 behaviours=3 passed=1 failed=2\n")
	assert.Contains(t, text, `expected: "expected"`)
	assert.Contains(t, text, `actual  : "seen"`)
	assert.Contains(t, text, "cleaned up")
	assert.Contains(t, text, "panic: no")
	assert.NotContains(t, text, "not reached")
	assert.Contains(t, text, "excepted: does not apply: as it is so")
	assert.Contains(t, text, "no verb: does not apply: the kind has no verb delete")

	out.Reset()
	r = &report{out: out}
	r.run(context.Background(), nil, k, passes)
	require.NoError(t, r.end(1))
	assert.Contains(t, out.String(), "\nconformance: kinds=1 behaviours=1 passed=1 failed=0\n")
}

func TestCleanupsOfAnInterruptedBehaviour(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cleaned := false
	b := behaviour{do: func(t *T, _ *kind) {
		t.cleanup(func() { cleaned = t.Err() == nil })
		cancel()
		assert.Error(t, t.Err())
	}}
	assert.Empty(t, b.run(ctx, nil, nil))
	assert.True(t, cleaned, "cleanups have a context that is not done")
}
