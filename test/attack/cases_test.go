package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

var testWorld = &world{acmeMac: "mac-1", acmeSerial: "SIM0000001", acmeUID: "acme-uid", globexMac: "mac-2", globexSerial: "SIM0000002", globexUID: "globex-uid"}

func TestEveryFileIsAFamily(t *testing.T) {
	names, err := caseFiles()
	require.NoError(t, err)
	made := []string{"held"}
	for _, f := range families {
		if f.file != "" {
			made = append(made, f.file)
		}
	}
	assert.ElementsMatch(t, names, made)
	total := 0
	for _, name := range names {
		attempts, err := testWorld.cases(name)
		require.NoError(t, err)
		total += len(attempts)
		for _, a := range attempts {
			assert.Equal(t, name, strings.ReplaceAll(a.family, " ", "-"))
			assert.NotEmpty(t, a.want.codes, a.name)
			_, known := people[a.who]
			assert.True(t, known || slices.Contains([]string{"agent", "other-agent", "anonymous"}, a.who), "%s: unknown user %q", a.name, a.who)
		}
	}
	assert.Equal(t, 794, total, "attempts that are data; update the number after a change")
}

func TestAttemptsAreDecodedStrictly(t *testing.T) {
	assert.Error(t, yaml.UnmarshalStrict([]byte("family: x\nattempts:\n- {name: x, do: acme get rack/x, wants: 403}"), &caseFile{}))
	for name, spec := range map[string]caseSpec{
		"unknown verb":              {Do: "acme brew rack/x", Want: "403"},
		"unknown beginning of path": {Do: "acme get rock/x", Want: "403"},
		"unknown step":              {Do: "acme run x", Want: "403"},
		"unknown given":             {Do: "acme get rack/x", Given: "x", Want: "403"},
		"unknown object":            {Do: "acme post rack/x", Object: "x", Want: "403"},
		"unknown variable":          {Do: "acme get rack/$(x)", Want: "403"},
		"no code":                   {Do: "acme get rack/x", Want: "forbidden"},
	} {
		e := expander{world: testWorld.variables()}
		_, err := e.attempts("x", spec)
		assert.Error(t, err, name)
	}
}

func TestTextsAreExpanded(t *testing.T) {
	e := expander{world: testWorld.variables(), value: "аb\n"}
	for text, want := range map[string]string{
		"$(acmeMac)/$(globexUID)": "mac-1/globex-uid",
		"$(acmeRecord)":           "sim0000001-000000000001",
		"a $(ab*3)":               "a ababab",
		"$(quoted)":               `"\u0430b\n"`,
		"$(quoted:1)":             `"\u0430"`,
		"$(value)":                "аb\n",
		"$x (y)":                  "$x (y)",
	} {
		assert.Equal(t, want, e.text(text))
	}
	assert.NoError(t, e.err)
}

func TestFieldsAreCompared(t *testing.T) {
	check := checkFields(map[string]any{"a.b": float64(1), "c": nil}, map[string]any{"d": "x"})
	assert.NoError(t, check(`{"a":{"b":1},"d":"y"}`))
	assert.Error(t, check(`{"a":{"b":2},"d":"y"}`))
	assert.Error(t, check(`{"a":{"b":1},"c":1,"d":"y"}`))
	assert.Error(t, check(`{"a":{"b":1},"d":"x"}`))
}
